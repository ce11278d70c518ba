"""The forms of unsynced content: which there are, that no more than a model allows, and of how
many files at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.crash_states import PlaceCount, contains, enumerate_states
from fault_injection.crash_states.containment import bytes_differ
from fault_injection.crash_states.forms import MOST_STEPS, forms
from fault_injection.crash_states.history import History
from fault_injection.crash_states.models import model_named
from fault_injection.crash_states.space import Space, space_of
from tests.fault_injection.random_traces import builds
from tests.fault_injection.traces import Build, shapes_at_the_end

ALL = ("posix", "ext4", "xfs", "btrfs")
PAGE = 4096
FAST = settings(max_examples=40, deadline=None, derandomize=True)


def contents(build: Build, model: str) -> set[bytes]:
    return {dict(shape)["f"] for shape in shapes_at_the_end(build, model)}


def overwritten(size: int, offset: int, *, file_bytes: int = 5 * PAGE) -> Build:
    build = Build({"f": b"o" * file_bytes})
    build.write("f", b"n" * size, offset=offset)
    return build


@st.composite
def page_builds(draw: st.DrawFn) -> Build:
    """Writes of several pages to one file, unaligned and not, beside truncates and syncs."""
    build = Build({"f": b"o" * draw(st.sampled_from((0, 300, PAGE, 3 * PAGE + 700, 6 * PAGE)))})
    for n in range(draw(st.integers(1, 5))):
        match draw(st.sampled_from(("write", "write", "write", "append", "truncate", "fsync"))):
            case "append":
                build.write("f", bytes([65 + n]) * draw(st.sampled_from((40, 700, 9000, 20480))))
            case "write":
                size = draw(st.sampled_from((40, 512, 700, 1536, PAGE, 9000, 20480)))
                offset = draw(st.sampled_from((0, 100, 512, PAGE, 5000, 3 * PAGE, 9 * PAGE)))
                build.write("f", bytes([65 + n]) * size, offset=offset)
            case "truncate":
                build.truncate("f", draw(st.sampled_from((0, 3, 6000, 5 * PAGE))))
            case _:
                build.fsync("f")
    return build


@pytest.mark.parametrize("model", ALL)
@FAST
@given(build=st.one_of(page_builds(), builds()))
def test_each_form_meets_the_constraints_of_its_model_and_of_posix(
    model: str, build: Build
) -> None:
    """Asked of the constraints alone: the check takes what is enumerated for granted otherwise."""
    trace = build.trace()
    for asked in (model, "posix"):
        alone = _Formless(space_of(trace, asked))
        for context in space_of(trace, model).contexts:
            for inode, pending in context.pending.items():
                covered = context.covered.get(inode, ())
                history, rules = alone.history, model_named(model)
                for form in forms(history, rules, inode, covered=covered, pending=pending):
                    problem = bytes_differ(
                        alone,  # type: ignore[arg-type]
                        inode,
                        covered=covered,
                        pending=pending,
                        real=form.content,
                        digest=form.digest,
                        store=history.store,
                    )
                    assert problem is None, (asked, form.name, problem)


class _Formless:
    """A space that knows no form."""

    def __init__(self, space: Space) -> None:
        self.history: History = space.history
        self.model = space.model

    def forms_of(self, *_: object) -> tuple[()]:
        return ()


@pytest.mark.parametrize("model", ALL)
@FAST
@given(build=page_builds())
def test_each_state_of_many_pages_is_contained_in_its_model_and_in_posix(
    model: str, build: Build
) -> None:
    trace = build.trace()
    for state in enumerate_states(trace, model=model, bound=50):
        for asked in (model, "posix"):
            problem = contains(trace, asked, state.place, state.tree())
            assert problem is None, (asked, problem, state.descriptor())


@pytest.mark.parametrize(
    ("offset", "size", "at"),
    [
        (0, 513, 512),
        (0, 768, 512),
        (0, 1023, 512),
        (0, 1024, 512),
        (100, 600, 512),
        (300, 400, 512),
        (1000, 700, 1024),
        (512, 2048, 1536),
    ],
)
def test_an_overwrite_is_torn_where_it_crosses_into_a_sector(
    offset: int, size: int, at: int
) -> None:
    end = offset + size
    old = b"o" * 5 * PAGE
    first = old[:offset] + b"n" * (at - offset) + old[at:]
    last = old[:at] + b"n" * (end - at) + old[end:]
    assert {first, last} <= contents(overwritten(size, offset), "posix")


@pytest.mark.parametrize(("offset", "size"), [(0, 512), (512, 512), (100, 412), (600, 10)])
def test_an_overwrite_within_a_sector_is_atomic(offset: int, size: int) -> None:
    for model in ALL:
        assert len(contents(overwritten(size, offset), model)) == 2


def test_a_write_over_the_last_bytes_and_beyond_them_may_lack_the_length() -> None:
    found = contents(overwritten(200, 50, file_bytes=100), "posix")
    old, both, short = b"o" * 100, b"o" * 50 + b"n" * 200, b"o" * 50 + b"n" * 50
    assert found == {old, both, short, old + bytes(150)}


@pytest.mark.parametrize("model", ALL)
def test_inner_pages_of_an_overwrite_are_lost_alone_and_there_alone(model: str) -> None:
    found = contents(overwritten(5 * PAGE, 0), model)
    pages = {tuple(content[n * PAGE] for n in range(5)) for content in found}
    for letters in (b"nnonn", b"nooon", b"onnno"):
        assert tuple(letters) in pages
    if model != "posix":  # which tears in the middle of a page here
        assert {tuple(b"oonnn"), tuple(b"nnooo")} <= pages


def test_inner_sectors_of_an_overwrite_are_lost_alone_and_there_alone_under_posix_only() -> None:
    found = {model: contents(overwritten(5 * 512, 0), model) for model in ALL}
    sectors = {tuple(content[n * 512] for n in range(5)) for content in found["posix"]}
    assert {tuple(letters) for letters in (b"nnonn", b"nooon", b"onnno")} <= sectors
    for model in ("ext4", "xfs", "btrfs"):
        assert len(found[model]) == 2


@pytest.mark.parametrize("model", ALL)
def test_header_and_footer_of_an_append_without_what_lies_between(model: str) -> None:
    build = Build({"f": b"o" * PAGE})
    build.write("f", b"n" * 5 * PAGE)
    gap = b"o" * PAGE + b"n" * PAGE + bytes(3 * PAGE) + b"n" * PAGE
    assert (gap in contents(build, model)) is (model in ("posix", "ext4"))


@pytest.mark.parametrize("model", ALL)
def test_the_first_bytes_of_an_append_and_zeros_to_its_full_length(model: str) -> None:
    """What a reader takes for complete that trusts a length in front of the bytes."""
    build = Build({"f": b"o" * PAGE})
    build.write("f", b"n" * 9000)
    padded = b"o" * PAGE + b"n" * PAGE + bytes(9000 - PAGE)
    assert (padded in contents(build, model)) is (model in ("posix", "ext4"))


@pytest.mark.parametrize("model", ALL)
def test_a_new_file_has_its_first_bytes_and_zeros_under_posix_only(model: str) -> None:
    build = Build()
    build.create("f", b"n" * 9000)
    build.fsync()
    found = contents(build, model)
    assert (b"n" * PAGE + bytes(9000 - PAGE) in found) is (model == "posix")


def test_a_small_append_has_one_form_more_for_zeros_after_its_first_bytes() -> None:
    """Each form of a small append may be a run: there are six, and no more."""
    build = Build({"f": b"o" * 100})
    build.write("f", b"n" * 40)
    half, zeros = b"n" * 20, bytes(20)
    ends = (b"", half + half, half, half + zeros, zeros + half, zeros + zeros)
    assert contents(build, "posix") == {b"o" * 100 + end for end in ends}
    assert contents(build, "ext4") == {b"o" * 100 + end for end in (b"", half + half, bytes(40))}


def page_writes(count: int) -> Build:
    build = Build({"f": b"o" * count * PAGE})
    for n in range(count):
        build.write("f", b"n" * PAGE, offset=n * PAGE)
    return build


@pytest.mark.parametrize("count", [5, 9, MOST_STEPS + 1])
@pytest.mark.parametrize("model", ALL)
def test_each_one_of_several_writes_is_lost_alone(model: str, count: int) -> None:
    build = page_writes(count)
    counts: list[PlaceCount] = []
    for _ in enumerate_states(build.trace(), model=model, counts=counts):
        pass
    assert not any(count.sampled for count in counts)
    found = contents(build, model)
    for lost in range(count):
        pages = [b"o" if n == lost else b"n" for n in range(count)]
        assert b"".join(page * PAGE for page in pages) in found


def test_a_file_with_more_writes_than_are_left_out_each_says_sampled() -> None:
    counts: list[PlaceCount] = []
    for _ in enumerate_states(page_writes(MOST_STEPS + 2).trace(), model="posix", counts=counts):
        pass
    assert [count.sampled for count in counts] == [False] * (MOST_STEPS + 2) + [True]


@pytest.mark.parametrize("model", ALL)
def test_two_writes_that_share_a_page_are_lost_together(model: str) -> None:
    build = Build({"f": b"o" * 2 * PAGE})
    build.write("f", b"1" * 512, offset=0)
    build.write("f", b"2" * 512, offset=1024)
    only_second = b"o" * 1024 + b"2" * 512 + b"o" * (2 * PAGE - 1536)
    assert (only_second in contents(build, model)) is (model == "posix")


@pytest.mark.parametrize("files", [2, 3, 4, 6])
@pytest.mark.parametrize("model", ALL)
def test_all_files_come_back_in_the_same_kind_of_form(model: str, files: int) -> None:
    """Copies of one record, all damaged at once, as when the power fails during their syncs."""
    names = [f"q{n}" for n in range(files)]
    build = Build({**dict.fromkeys(names, b"o" * 3 * PAGE), "beside": b""})
    for name in names:
        build.write(name, b"n" * 3 * PAGE, offset=0)
    build.write("beside", b"line\n")
    shapes = shapes_at_the_end(build, model)
    damaged = {b"nno", b"noo", b"non", b"ono"} | ({b"onn"} if model != "posix" else set())
    for letters in damaged:
        content = b"".join(bytes([letter]) * PAGE for letter in letters)
        copies = dict.fromkeys(names, content)
        for beside in (b"", b"line\n"):
            assert tuple(sorted({**copies, "beside": beside}.items())) in shapes


def test_three_truncated_and_rewritten_files_are_all_empty_and_all_cut() -> None:
    names = ("a", "b", "c")
    build = Build(dict.fromkeys(names, b"o" * 9000))
    for name in names:
        build.truncate(name)
        build.write(name, b"n" * 9000)
    for model in ALL:
        shapes = shapes_at_the_end(build, model)
        for content in (b"", b"o" * 9000, b"n" * PAGE, b"n" * 2 * PAGE):
            assert tuple((name, content) for name in names) in shapes


@pytest.mark.parametrize("model", ALL)
@FAST
@given(build=builds())
def test_what_was_looked_at_is_what_was_counted(model: str, build: Build) -> None:
    counts: list[PlaceCount] = []
    for _ in enumerate_states(build.trace(), model=model, counts=counts):
        pass
    assert all(count.states == count.possible for count in counts)


def test_each_form_of_one_of_two_files_while_the_other_is_lost() -> None:
    build = Build({"f": b"o" * 5 * PAGE, "g": b"o"})
    build.write("g", b"n", offset=0)
    build.write("f", b"n" * 5 * PAGE, offset=0)
    shapes = shapes_at_the_end(build, "xfs")
    of_f = {dict(shape)["f"] for shape in shapes}
    assert {tuple(sorted({"f": f, "g": g}.items())) for f in of_f for g in (b"o", b"n")} == shapes
