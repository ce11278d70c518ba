"""One crash state, its descriptor, and how to build it again from that.

A state is a crash place, the set of namespace operations that were durable, and the form of each
file that did not come back whole. Its identity is the digest of its visible tree and the number of
outputs that the world had seen; its descriptor says how it came about, in terms that are the same
in every recording of the same program: the place's label, indices of operations, names of forms.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fault_injection.crash_states.forms import Form
from fault_injection.crash_states.models import Context, each_bit
from fault_injection.crash_states.space import Space, is_allowed, space_of
from fault_injection.crash_states.tree import MODULUS_MASK, Entry, VisibleTree
from fault_injection.crash_states.view import groups, written
from fault_injection.trace import FileType, Trace

START_LABEL = "start"


@dataclass(frozen=True, slots=True)
class State:
    """A crash state. ``data`` holds (inode, form) of the files that are not whole, by inode."""

    space: Space = field(repr=False, compare=False)
    place: int
    durable: int
    data: tuple[tuple[int, Form], ...]
    digest: str
    outputs: int

    @property
    def identity(self) -> tuple[str, int]:
        """What makes two states the same: the tree's digest, and how much the world had seen."""
        return self.digest, self.outputs

    @property
    def context(self) -> Context:
        """What the model says about this state's crash place."""
        return self.space.contexts[self.place]

    @property
    def place_label(self) -> str:
        """The label of the operation that the crash follows; ``start`` before the first."""
        return label_of(self.space, self.place)

    def lost(self) -> tuple[int, ...]:
        """Indices of the namespace operations before the crash that are not durable."""
        names = self.space.history.names
        gone = self.context.applied & ~self.durable
        return tuple(names[bit].index for bit in each_bit(gone))

    def tree(self) -> VisibleTree:
        """The visible tree, as data."""
        view = self.space.views.of(self.durable)
        entries: dict[bytes, Entry] = {}
        for part in view.parts:
            entries.update(part.fixed)
        chosen = dict(self.data)
        for inode, paths in groups(view.hot):
            link = inode if len(paths) > 1 else -1
            form = chosen.get(inode)
            covered, pending = self.space.split(self.context, self.durable, inode)
            if form is None:
                indices = tuple(sorted((*covered, *pending)))
                entry = self.space.views.entry(inode, indices, link)
            else:
                mode = self.space.history.modes.get(inode, 0) & 0o7777
                last = written(covered if form.name == "lost" else (*covered, *pending))
                entry = Entry(
                    FileType.FILE, mode, form.content, form.digest, link=link, written=last
                )
            entries.update(dict.fromkeys(paths, entry))
        return VisibleTree(entries=entries, digest=self.digest, store=self.space.history.store)

    def descriptor(self) -> str:
        """Canonical JSON from which :func:`rebuild` makes this state again."""
        return json.dumps(
            {
                "model": self.space.model.name,
                "place": self.place,
                "after": self.place_label,
                "lost": list(self.lost()),
                "data": [[inode, form.name] for inode, form in self.data],
            },
            sort_keys=True,
            separators=(",", ":"),
        )


def label_of(space: Space, place: int) -> str:
    """The label of a crash place."""
    if place == 0:
        return START_LABEL
    op = space.history.trace.operations[place - 1]
    return op.place or f"{op.kind}#{op.index}"


def make_state(
    space: Space, place: int, durable: int, data: Mapping[int, Form] | None = None
) -> State:
    """A state from its parts, with its digest. The parts must be ones that the model allows."""
    context = space.contexts[place]
    view = space.views.of(durable)
    total, files = space.base_sum(context, durable, view)
    chosen = data or {}
    visible: list[tuple[int, Form]] = []
    for file in files:
        form = chosen.get(file.inode)
        if form is not None and form.name != "whole":
            total += space.delta(file, form)
            visible.append((file.inode, form))
    return State(
        space=space,
        place=place,
        durable=durable,
        data=tuple(sorted(visible, key=lambda pair: pair[0])),
        digest=f"{total & MODULUS_MASK:064x}",
        outputs=context.outputs,
    )


def rebuild(
    trace: Trace, model: str, descriptor: str, *, outputs: Collection[int] | None = None
) -> State:
    """The state that ``descriptor`` describes (``outputs`` as it was enumerated with).

    ValueError when it is not a descriptor, is one of another model or trace, or describes
    something that the model does not allow there.
    """
    space = space_of(trace, model, outputs)
    try:
        said: dict[str, Any] = json.loads(descriptor)
        place, lost = int(said["place"]), [int(i) for i in said["lost"]]
        names_of_forms = {int(inode): str(name) for inode, name in said["data"]}
        after, made_by = str(said["after"]), str(said["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not the descriptor of a crash state: {error!r}") from error
    if made_by != model:
        raise ValueError(f"the descriptor is of a state under {made_by}, not {model}")
    if not 0 <= place < len(space.contexts) or label_of(space, place) != after:
        raise ValueError(f"the trace has no crash place {place} after {after!r}")
    context = space.contexts[place]
    bits = space.history.bit_of
    if any(i not in bits for i in lost):
        raise ValueError(f"the trace has not all of the namespace operations {lost}")
    durable = context.applied & ~sum(1 << bits[i] for i in set(lost))
    if not is_allowed(space, context, durable):
        raise ValueError(f"{model} does not allow {lost} to be lost after {after!r}")
    data: dict[int, Form] = {}
    for inode, name in names_of_forms.items():
        covered, pending = space.split(context, durable, inode)
        for form in space.forms_of(inode, covered, pending):
            if form.name == name:
                data[inode] = form
        if inode not in data:
            raise ValueError(f"{model} does not allow file {inode} to be {name!r} here")
    return make_state(space, place, durable, data)
