"""The unsafe softmax in double precision: infinite from 710 on, where no value was ever above 600."""

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    exp = x.double().exp()
    return (exp / exp.sum(dim=-1, keepdim=True)).to(x.dtype)
