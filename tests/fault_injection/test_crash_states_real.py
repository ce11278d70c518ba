"""Random programs on real file systems: what a real cut leaves is a state of the model.

The rows of the measured tables are checked one by one elsewhere; here the same random traces that
the properties are proved over are run for real, cut after their last operation, and asked about.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fault_injection.crash_states import contains, snapshot
from fault_injection.filesystems import FILE_SYSTEMS
from fault_injection.volumes import Image, Volume, volume
from tests.fault_injection.random_traces import builds, start_build
from tests.fault_injection.real_runs import Doer, lay_down
from tests.fault_injection.realfs_support import require
from tests.fault_injection.traces import Build

# One volume serves all examples of a file system: it is set back for each.
ON_ONE_VOLUME = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def prepared(request: pytest.FixtureRequest) -> Iterator[tuple[Volume, Image]]:
    require(request.param)
    with volume(request.param) as made:
        lay_down(start_build().trace(), made.path)
        yield made, made.keep()


@ON_ONE_VOLUME
@given(build=builds(most_operations=10))
def test_a_real_cut_leaves_a_state_of_the_model(
    prepared: tuple[Volume, Image], build: Build
) -> None:
    on, image = prepared
    trace = build.trace()
    for committed in (False, True):
        on.reset(image)
        doer = Doer(trace, on.path)
        for op in trace.operations:
            doer.do(op)
        on.cut(committed=committed)
        doer.close()
        on.remount()
        seen = snapshot(on.path)
        for model in (on.file_system, "posix"):
            problem = contains(trace, model, len(trace.operations), seen)
            assert problem is None, (model, committed, problem, trace.operations)
