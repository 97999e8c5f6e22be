"""Imports a package that is not there."""

import a_package_that_is_not_there

EXPECTED = ("COMPILE_ERROR",)


def softmax(x):
    return x
