"""Redirects launches of the CuTe DSL into the emulator while a session is open.

How it works
    A function compiled by the DSL is host code (LLVM) with a cubin inside; a JIT engine links it
    against `libcute_dsl_runtime.so`. Inside a session every call goes to a *twin* (link.py): the
    same code linked against our `Shim` instead. The function itself stays as it was, so on a
    machine with a GPU it still launches natively outside of sessions. The emulator runs PTX, so
    compiling inside `session()` or `keep_ptx()` adds the text to the module's fat binary.

What a disk cache must hold
    One object file: the PTX travels inside its fat binary, and nothing is needed beside it.

        with fa4.emulator.keep_ptx():
            compiled = cute.compile(host, ...)              # options="--enable-tvm-ffi" or not
        compiled.export_to_c(directory, "name", "prefix")   # default path: directory/name.o
        compiled.export_to_c(path, function_name="prefix")  # TVM-FFI: path ends in .o

    and in another process, without compiling:

        with fa4.emulator.session():
            function = cute.runtime.load_module(path)["prefix"]  # enable_tvm_ffi=True or not
            function(...)

    Load inside a session to emulate, outside of one to launch natively: what is loaded stays bound
    to where it was loaded. A function loaded for the emulator may be called in any later session.

Limits: a session that a user opens holds for all threads of the process. While only a call on CPU
tensors is emulated, what other threads call through the DSL (HardwareInfo, compiled functions, CuTe
tensors) goes on natively, but what they compile then is for that call's architecture
(CUTE_DSL_ARCH), unless fa4 compiles it. A TVM-FFI function that is called from C++, or that was
loaded outside of sessions, is not redirected.
"""

import contextlib
import importlib.util
import threading
from collections.abc import Callable, Iterator

from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
from cutlass.cute.runtime import _Tensor
from cutlass.cutlass_dsl import CuTeDSL
from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
from cutlass.utils import HardwareInfo

from fa4.emulator.cuda_runtime import RETURN_ZERO, EmulatedRuntime, RawLaunch
from fa4.emulator.keep import keep_ptx
from fa4.emulator.link import Linker, bind, emulated_name
from fa4.emulator.patching import PROCESS_STATE, environment, replaced
from fa4.emulator.sessions import open_sessions
from fa4.emulator.shim import Shim
from fa4.emulator.tensors import Arguments, CudaView, is_on_cpu, refuse_cuda

_BOUND = "_fa4_loaded_in_session"


class Hook:
    """The process's only connection to the DSL: open from the first session to the last.

    `sessions` is a stack; the innermost one answers device attributes and receives launches, and
    its architecture is compiled for.
    """

    def __init__(self) -> None:
        self.sessions: list[object] = []
        self._thread = 0  # that entered latest
        self.arguments = Arguments()
        self.runtime = EmulatedRuntime(self._launch, self._attribute)
        callbacks = self.runtime.callbacks()
        self.shim = Shim(
            {emulated_name(name): callback for name, callback in callbacks.items()},
            [emulated_name(name) for name in RETURN_ZERO],
        )
        self.linker = Linker(self.shim.path, (*callbacks, *RETURN_ZERO))
        self._patches, self._target = contextlib.ExitStack(), contextlib.ExitStack()

    def enter(self, session: object, implicit: bool = False) -> None:
        """Redirect calls to `session` until `leave`.

        implicit: no user opened it, and calls of other threads go on natively, although the DSL's
        compile target is process-wide; whoever did holds PROCESS_STATE until it is closed.
        """
        with PROCESS_STATE:
            if session in self.sessions:
                raise RuntimeError("this session is already open: make a new one with session()")
            if not self.sessions:
                with contextlib.ExitStack() as patches:
                    self._install(patches)
                    self._patches = patches.pop_all()
            self._thread = threading.get_ident()
            self.sessions.append(session)
            if not implicit:
                open_sessions.append(session)
            self._aim()

    def leave(self, session: object) -> None:
        """Give calls back to the session around this one, or to the CUDA driver."""
        with PROCESS_STATE:
            self.sessions.remove(session)
            if session in open_sessions:
                open_sessions.remove(session)
            self._aim()
            if not self.sessions:
                self._patches.close()

    def _aim(self) -> None:
        """Compile for the innermost session: threads may close theirs in any order."""
        self._target.close()
        if self.sessions:
            self._target.enter_context(compile_target(self.sessions[-1].arch))

    def _current(self) -> object:
        if not self.sessions or not self._redirects():
            raise RuntimeError(
                "this function is bound to the emulator: call it inside fa4.emulator.session()"
            )
        return self.sessions[-1]

    def _launch(self, launch: RawLaunch) -> None:
        self._current().launch(launch, self.arguments.ranges)

    def _attribute(self, number: int) -> int:
        return self._current().device.attribute(number)

    @contextlib.contextmanager
    def call(self, already_marshalled: bool = False) -> Iterator[None]:
        """Around one call of a compiled function: what the engine raised comes out unchanged."""
        self._current()
        self.arguments.begin(already_marshalled)
        try:
            yield
        except BaseException:
            if self.runtime.pending is None:
                raise
        finally:
            self.arguments.end()
        pending, self.runtime.pending = self.runtime.pending, None
        if pending is not None:
            raise pending from None

    def _install(self, patches: contextlib.ExitStack) -> None:
        def patch(owner: object, name: str, make: Callable[[object], object]) -> None:
            patches.enter_context(replaced(owner, name, lambda native: self._here(native, make)))

        patches.enter_context(keep_ptx())
        for name in ("__call__", "run_compiled_program", "to"):
            patch(CudaDialectJitCompiledFunction, name, self._on_twin)
        patch(ExternalBinaryModule, "__init__", self._load_linked)
        patch(ExternalBinaryModule, "__getattr__", self._loaded_function)
        patch(_Tensor, "__init__", self._tensor_as_cuda)
        patch(_Tensor, "__c_pointers__", self._note_tensor)
        patch(HardwareInfo, "__init__", lambda _: lambda info, device_id=0: None)
        patch(HardwareInfo, "get_max_active_clusters", self._max_clusters)
        patch(HardwareInfo, "get_device_multiprocessor_count", self._num_sms)
        patch(HardwareInfo, "get_l2_cache_size_in_bytes", self._l2_bytes)
        if importlib.util.find_spec("tvm_ffi") is not None:
            from cutlass.cutlass_dsl import tvm_ffi_provider as provider

            patch(provider.TVMFFIJitCompiledFunction, "__call__", self._tvm_ffi_call)
            patch(provider.TVMFFIJitCompiledFunctionWithKwargs, "__call__", self._tvm_ffi_call)
            patch(provider.TVMFFIJitCompiledFunctionBase, "to", lambda original: original)

    def _redirects(self) -> bool:
        """Whether this thread's calls are redirected: an implicit session is of one thread."""
        return bool(open_sessions) or threading.get_ident() == self._thread

    def _here(self, native: Callable, make: Callable[[object], object]) -> Callable[..., object]:
        emulated = make(native)

        def call(*args: object, **kwargs: object) -> object:
            return (emulated if self._redirects() else native)(*args, **kwargs)

        return call

    def _on_twin(self, original: Callable[..., object]) -> Callable[..., object]:
        def call(function: object, *args: object, **kwargs: object) -> object:
            # a host function called without compiling it first comes here with raw arguments
            with self.call(already_marshalled=original.__name__ == "run_compiled_program"):
                return original(self.linker.twin_of(function), *args, **kwargs)

        return call

    def _tvm_ffi_call(self, _original: object) -> Callable[..., object]:
        def call(function: object, *args: object, **kwargs: object) -> object:
            with self.call():
                twin = self.linker.twin_of(function)
                if function.execution_args.has_pointer_address_arg_specs:
                    convert = function.execution_args.convert_python_pointer_args_for_tvm_ffi
                    args, kwargs = convert(args, kwargs)
                return self.call_tvm_ffi(twin, args, kwargs)

        return call

    def call_tvm_ffi(self, target: Callable[..., object], args: tuple, kwargs: dict) -> object:
        """Call a TVM-FFI function with CPU tensors labelled as CUDA tensors."""
        args = [self.arguments.for_tvm_ffi(value) for value in args]
        kwargs = {name: self.arguments.for_tvm_ffi(value) for name, value in kwargs.items()}
        return target(*args, **kwargs)

    def _load_linked(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(module: object, file_path: str, enable_tvm_ffi: bool = False) -> None:
            def engine(image: bytes, _libraries: list[str], _use_jit_link: bool) -> object:
                return self.linker.engine(image)

            provider = module.load_provider
            with replaced(provider, "execution_engine_constructor", lambda _: engine):
                original(module, file_path, enable_tvm_ffi)
            setattr(module, _BOUND, True)

        return init

    def _loaded_function(self, original: Callable[..., object]) -> Callable[..., object]:
        def lookup(module: object, name: str) -> object:
            function = original(module, name)
            if not vars(module).get(_BOUND):
                return function
            if isinstance(function, CudaDialectJitCompiledFunction):
                bind(function)
            return LoadedFunction(self, function)

        return lookup

    def _tensor_as_cuda(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(tensor: object, source: object, *args: object, **kwargs: object) -> None:
            refuse_cuda(source)
            original(tensor, CudaView(source) if is_on_cpu(source) else source, *args, **kwargs)

        return init

    def _note_tensor(self, original: Callable[..., object]) -> Callable[..., object]:
        def pointers(tensor: object) -> object:
            self.arguments.note_cute(tensor)
            return original(tensor)

        return pointers

    def _max_clusters(self, _original: object) -> Callable[..., int]:
        return lambda info, cluster_size, stream=None: (
            self._current().device.num_sms // cluster_size
        )

    def _num_sms(self, _original: object) -> Callable[[object], int]:
        return lambda info: self._current().device.num_sms

    def _l2_bytes(self, _original: object) -> Callable[[object], int]:
        return lambda info: self._current().device.l2_bytes


class LoadedFunction:
    """A function from an object file that was loaded inside a session."""

    def __init__(self, hook: Hook, function: Callable[..., object]) -> None:
        self._hook = hook
        self._function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        with self._hook.call():
            if isinstance(self._function, CudaDialectJitCompiledFunction):
                return self._function(*args, **kwargs)
            return self._hook.call_tvm_ffi(self._function, args, kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self._function, name)


_hook: Hook | None = None


def the_hook() -> Hook:
    """The hook of this process, made at the first session."""
    global _hook
    with PROCESS_STATE:
        if _hook is None:
            _hook = Hook()
        return _hook


@contextlib.contextmanager
def compile_target(arch: str) -> Iterator[None]:
    """Make `arch` the DSL's compile target, also where a GPU of another kind is present."""
    settings = CuTeDSL._get_dsl().envar
    before = settings._arch
    with environment("CUTE_DSL_ARCH", arch):
        settings.arch = arch
        try:
            yield
        finally:
            settings.arch = before
