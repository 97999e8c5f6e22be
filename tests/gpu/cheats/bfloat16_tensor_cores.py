"""bfloat16 products under a problem that asks for full float32."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "gemm"
WORKLOADS = ("67x131x127-fp32",)


def gemm(a, b):
    return (a.bfloat16() @ b.bfloat16()).to(a.dtype)
