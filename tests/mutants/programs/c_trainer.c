/* Correct, in C: write, fflush, fsync, rename, fsync of the directory, and then the words. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct state {
    long step;
    double weight, momentum;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void save(const struct state *s)
{
    FILE *out = fopen("state.tmp", "wb");
    if (!out || fwrite(s, sizeof *s, 1, out) != 1 || fflush(out) || fsync(fileno(out)))
        die("state.tmp");
    if (fclose(out) || rename("state.tmp", "state"))
        die("state");
    int directory = open(".", O_RDONLY | O_DIRECTORY);
    if (directory < 0 || fsync(directory))
        die("the directory");
    close(directory);
    printf("[checkpoint %ld]\n", s->step);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct state s = {0, 1.0, 0.0};
    if (argc != 2 || chdir(argv[1]))
        die("usage: trainer ROOT");
    FILE *in = fopen("state", "rb");
    if (in) {
        if (fread(&s, sizeof s, 1, in) != 1)
            die("state");
        fclose(in);
    } else if (errno != ENOENT) {
        die("state");
    }
    while (s.step < 12) {
        double error = s.weight - 0.25 * (double)(s.step % 4);
        s.momentum = 0.5 * s.momentum + error;
        s.weight -= 0.2 * s.momentum;
        s.step++;
        printf("loss[%ld] = %a\n", s.step, error * error);
        if (s.step % 4 == 0)
            save(&s);
    }
    FILE *final = fopen("final.bin", "wb");
    if (!final || fwrite(&s.weight, sizeof s.weight, 1, final) != 1 || fclose(final))
        die("final.bin");
    return 0;
}
