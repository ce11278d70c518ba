"""A checkpoint says whether its run was resumed, so its bytes differ."""

from typing import Any

from tinyllm import trainer, writer
from tinyllm.cli import main
from tinyllm.training import Training

BREAKS = "same-final"
LAYERS = ("point", "kill")


real_restore, real_write = trainer.restore, writer.laid_out


def restored(*arguments: Any, **more: Any) -> Training:
    def write(*arguments: Any, metadata: dict[str, str]) -> Any:
        return real_write(*arguments, metadata=metadata | {"resumed": "yes"})

    writer.laid_out = write
    return real_restore(*arguments, **more)


if __name__ == "__main__":
    trainer.restore = restored
    raise SystemExit(main())
