"""The incumbent."""


def step(p, g):
    p.sub_(g, alpha=0.05)
