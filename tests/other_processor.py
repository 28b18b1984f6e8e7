"""Variables of libraries that compute as on an older x86 processor: `env $(python -m tests.other_processor) CMD`."""

from numpy._core import _multiarray_umath as numpy

VARIABLES = {
    "NUMBA_CPU_NAME": "generic",
    "OPENBLAS_CORETYPE": "Nehalem",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ARROW_USER_SIMD_LEVEL": "SSE4_2",
    "NPY_DISABLE_CPU_FEATURES": ",".join(each for each in numpy.__cpu_dispatch__ if numpy.__cpu_features__[each]),
}

if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in VARIABLES.items() if value))
