/* Broken under power loss: fsync(fileno(f)) before fclose(f) has handed over stdio's buffer. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long step;
static double weight = 1.0;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void save(void)
{
    FILE *out = fopen("state.tmp", "w");
    if (!out)
        die("state.tmp");
    fprintf(out, "%ld %a\n", step, weight);
    fsync(fileno(out));
    fclose(out);
    if (rename("state.tmp", "state"))
        die("state");
    int directory = open(".", O_RDONLY);
    fsync(directory);
    close(directory);
    printf("saved step=%ld\n", step);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 2 || chdir(argv[1]))
        die("usage: trainer ROOT");
    FILE *in = fopen("state", "r");
    if (in) {
        if (fscanf(in, "%ld %la", &step, &weight) != 2) {
            fputs("state: cannot be read\n", stderr);
            return 1;
        }
        fclose(in);
    }
    while (step < 9) {
        double error = weight - 0.25 * (double)(step % 4);
        weight -= 0.3 * error;
        step++;
        printf("step=%ld loss=%.17g\n", step, error * error);
        fflush(stdout);
        if (step % 3 == 0)
            save();
    }
    FILE *final = fopen("final", "w");
    fprintf(final, "%a\n", weight);
    return fclose(final) ? 1 : 0;
}
