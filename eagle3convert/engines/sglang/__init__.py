"""An outside model package for SGLang: it serves every EAGLE-3 drafter as speculators trains it.

SGLang's own draft class has one order of norm and residual, no norms on q and k, no biases and no window of its own.
The class here has them all.  SGLang is told of it with SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3convert.engines.sglang, and
eagle3convert must be installed beside SGLang.  `eagle3convert SOURCE sglang-plugin IN OUT` writes drafters for it.

SGLang's model registry imports every module of this package and looks for `EntryClass` in it
(srt/models/registry.py:118-151 of 0.5.23; this file itself is not looked at).
"""
