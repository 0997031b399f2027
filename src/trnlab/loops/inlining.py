# SPDX-License-Identifier: Apache-2.0
"""A pipeline of Numba's for functions that only compiled code calls: they are typed and lowered, and no more.

Numba makes of every function a library by itself: it optimises its code, links what it calls, optimises again,
makes machine code of it, and wrappers for Python and C. A caller then links the optimised code, and optimises it with
its own. Of a function that nobody calls but such callers, all but the code that they link is thrown away, and was
half of the time of a first start (ADR 79). Here a library is linked as it was lowered, and the outermost caller,
which is one that Python or a symbol leads to, optimises everything once.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class _Lowered(JITCodeLibrary):  # type: ignore[misc]
    """What was lowered, and what that calls; without machine code."""

    def finalize(self) -> None:
        """Link what is called."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._final_module.verify()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):  # type: ignore[misc]
    """Numba's, into a library of ours."""

    _name = "trnlab_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower, and make the function known to callers, who find it by the object that Python would call."""
        state.library = _Lowered(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        super().run_pass(state)
        lowered = state["cr"]
        entry = [lowered.fndesc.qualname].remove  # one more built-in function, which raises when Python calls it
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


class Inlined(CompilerBase):  # type: ignore[misc]
    """The pipeline, for `njit(pipeline_class=...)`."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own, with the lowering above."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [(_Lowering if step is NativeLowering else step, about) for step, about in pipeline.passes]
        pipeline._finalized = False
        pipeline.finalize()
        return [pipeline]
