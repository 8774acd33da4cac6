"""Our builder and our device behind MetaSchedule's interfaces. MetaSchedule's search then runs on our engine, which
separates the effect of the search from the effect of the engine.

These parts still differ from a run of ours:

- MetaSchedule proposes, builds and measures one batch at a time; each of these steps waits for the one before it.
- Every candidate is measured until its time has converged. MetaSchedule does not tell its runner which task a kernel
  belongs to, so no measurement can be stopped early because the candidate is slower than the task's best.
- Weights may stay in the caches between two runs of a kernel, as in MetaSchedule's own runner. In our runs they come
  from memory if the network's weights do not fit into the caches.
- The tasks are those of TVM's own pipeline, without our rewrites of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from devices.builds.linking import link
from devices.builds.worker import PASS_OPTIONS
from devices.device_factory import open_device
from devices.error_text import last_line
from devices.protocol import Artifact, Device, MeasureRequest, TensorSpec
from devices.targets import NATIVE, resolve_target
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Candidate, Outcome

BUILD_TIMEOUT_SECS = 180.0
"""Timeout of a build, the same as for MetaSchedule's own builder in these comparisons."""


def use_our_passes() -> None:
    """Make TVM build all kernels of this process with our passes, also those of networks."""
    from devices.builds.passes.kernel_passes import use_kernel_passes
    from devices.builds.passes.vector_math import use_vector_math

    use_vector_math()
    use_kernel_passes()


def compile_program(module_text: str, target_text: str) -> bytes:
    """Return the shared object of a scheduled program (``module_text``: TVM's JSON). As with MetaSchedule's own
    builder, it takes its weights in the layout of the schedule."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    from devices.targets import parse_target

    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module_text))
    with tvm.transform.PassContext(config=PASS_OPTIONS):
        built = tvm.tirx.build(module, target=parse_target(target_text))
    return link(built, target_text)


class _BuildProcess:
    """A build process that has loaded TVM. If it hangs or ends, it is replaced; the other processes are not
    affected."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._pool: ProcessPoolExecutor | None = None

    def build(self, text: str) -> bytes | str:
        """Return the shared object of a program (TVM's JSON), or the reason why it was not built."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=use_our_passes)
            self._pool.submit(use_our_passes).result()  # the start must not count as build time
        try:
            return self._pool.submit(compile_program, text, self._target).result(BUILD_TIMEOUT_SECS)
        except TimeoutError:
            self.close()
            return f"not built within {BUILD_TIMEOUT_SECS:g} s"
        except BrokenProcessPool as error:
            self.close()
            return f"the build process ended: {last_line(error)}"
        except Exception as error:  # TVM may raise anything over a program
            return last_line(error)

    def close(self) -> None:
        """End the process. May be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list(pool._processes.values()):  # a build may hang
                process.kill()
            pool.shutdown()


@derived_object
class WarmBuilder(ms.builder.PyBuilder):  # type: ignore[misc]
    """Builds in processes that have loaded TVM, with our passes and our linker, for this machine's CPU.

    Args:
        folder: existing folder for the kernels.
        workers: number of processes.
        threads: number of threads of the device that runs the kernels.
    """

    def __init__(self, folder: Path, workers: int, threads: int) -> None:
        super().__init__()
        self._folder = folder
        self._numbers = itertools.count()
        target = resolve_target(NATIVE, threads)
        self._processes = [_BuildProcess(target) for _ in range(workers)]
        self._free: SimpleQueue[_BuildProcess] = SimpleQueue()
        for process in self._processes:
            self._free.put(process)
        self._threads = ThreadPoolExecutor(workers)

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """Return a BuilderResult for each program: the path of its kernel, or an error."""
        import tvm

        texts = [tvm.ir.save_json(each.mod) for each in build_inputs]
        return [self._result(built) for built in self._threads.map(self._built, texts)]

    def close(self) -> None:
        """End the processes. May be called twice."""
        for process in self._processes:
            process.close()
        self._threads.shutdown()

    def _built(self, text: str) -> bytes | str:
        process = self._free.get()
        try:
            return process.build(text)
        finally:
            self._free.put(process)

    def _result(self, built: bytes | str) -> Any:
        if isinstance(built, str):
            return ms.builder.BuilderResult(None, built)
        path = self._folder / f"kernel-{next(self._numbers)}" / "kernel.so"  # MetaSchedule removes the kernel's folder
        path.parent.mkdir()
        path.write_bytes(built)
        return ms.builder.BuilderResult(str(path), None)


@derived_object
class _Measured(ms.runner.PyRunnerFuture):  # type: ignore[misc]
    """A future that is already done."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._result


@derived_object
class DeviceRunner(ms.runner.PyRunner):  # type: ignore[misc]
    """Measures kernels on one of our devices until their times have converged. As in MetaSchedule, the outputs are not
    checked."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._tasks: set[str] = set()

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Return a finished future for each kernel, with its time in seconds or an error."""
        return [_Measured(self._measured(each)) for each in runner_inputs]

    def _measured(self, given: Any) -> Any:
        path = Path(str(given.artifact_path))
        args = tuple(TensorSpec(tuple(int(n) for n in each.shape), str(each.dtype)) for each in given.args_info)
        task = f"task {args}"
        try:
            library = path.read_bytes()
            outputs = (len(args) - 1,)
            if task not in self._tasks:  # the device wants an oracle, but never runs it: no output is checked
                self._device.add_oracle(Artifact(task, None, library, args, args, outputs, (), "", 0.0))
                self._tasks.add(task)
            candidate = Candidate(task, 0, path.parent.name, ())
            artifact = Artifact(task, candidate, library, args, args, outputs, (), "", 0.0)
            measurement = self._device.measure(MeasureRequest(artifact, incumbent_secs=0.0))
        except Exception as error:  # the device is lost: MetaSchedule continues with the next kernel
            return ms.runner.RunnerResult(None, last_line(error))
        if measurement.outcome is not Outcome.OK:
            return ms.runner.RunnerResult(None, f"{measurement.outcome}: {measurement.detail}")
        return ms.runner.RunnerResult([measurement.cost_secs], None)


@contextmanager
def our_engine(folder: Path, threads: int) -> Iterator[dict[str, Any]]:
    """Yield the ``builder`` and the ``runner`` arguments of MetaSchedule's tuners, for this machine's CPU.

    ``folder``: existing folder for the kernels. ``threads``: number of threads of a kernel, and of build processes.
    """
    config = DeviceConfig(name="local", threads=threads)
    builder = WarmBuilder(folder, threads, threads)
    try:
        with open_device(config) as device:
            yield {"builder": builder, "runner": DeviceRunner(device)}
    finally:
        builder.close()
