"""After a rewind the line that is given up is deleted before the first save of the new one."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.durable import sync_directory
from tinyllm.paths import step_name
from tinyllm.retention import remove_tree
from tinyllm.writer import Save

BREAKS = "retention"
LAYERS = ("point", "kill")


real = writer.prepare_staging


def after_deleting(save: Save) -> None:
    if save.line.abandoned and save.line.base:
        writer.publish_pointer(save, save.line.base)
        for step in sorted(save.line.abandoned):
            if step_name(step) in save.names:
                aside = writer.move_aside(save, step_name(step))
                sync_directory(save.ckpt, unsupported=save.line.report)
                remove_tree(save.ckpt, aside)
                save.names.discard(aside)
    real(save)


if __name__ == "__main__":
    writer.prepare_staging = after_deleting
    raise SystemExit(main())
