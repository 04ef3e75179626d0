"""NumPy's arrays and scalars as a description that JSON can hold and raw bytes, and back.

Owns both directions. Any dtype without Python objects in it is taken, if its description leads back to the
same dtype; so a dtype that NumPy does not know by itself (an extension's, variable text) is refused rather
than saved as something similar. An array comes back dense, in its own memory, and with its dimensions in
the same order there, because sums depend on it. NumPy is never imported to save: without it nobody has an
array.
"""

from __future__ import annotations

import base64
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import torch

from torchloom.errors import UsageError

_WHOLE = "iu"
_TEXT, _BYTES = "U", "S"


def numpy() -> Any:
    """NumPy, for a state that has arrays in it. Raises UsageError if there is none."""
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise UsageError(
            "the checkpoint holds NumPy arrays, and NumPy cannot be imported", hint="install numpy"
        ) from error


def is_array(value: Any) -> bool:
    """An array of a dtype that can be saved, and of no subclass."""
    found = sys.modules.get("numpy")
    return found is not None and type(value) is found.ndarray and _described(value.dtype)


def is_scalar(value: Any) -> bool:
    """One of NumPy's own scalars."""
    found = sys.modules.get("numpy")
    return found is not None and isinstance(value, found.generic) and _described(value.dtype)


def order_of(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost; None if that is their own order."""
    long = [n for n, length in enumerate(shape) if length > 1]
    order = sorted(long, key=lambda n: -abs(strides[n]))
    if order == long or 0 in shape:
        return None
    return order + [n for n, length in enumerate(shape) if length <= 1]


def inverse(order: Sequence[int], dimensions: int) -> list[int]:
    """The permutation that undoes one. Raises ValueError for what is none."""
    if sorted(order) != list(range(dimensions)):
        raise ValueError("the order of dimensions is not valid")
    return [list(order).index(n) for n in range(dimensions)]


def take(array: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """(its bytes, its description). The bytes are those of the array itself where they lie in one run."""
    np = numpy()
    about: dict[str, Any] = {"dtype": _describe(array.dtype), "shape": list(array.shape)}
    if (order := order_of(array.shape, array.strides)) is not None:
        about["order"] = order
        array = array.transpose(order)
    if not array.nbytes:
        return torch.empty(0, dtype=torch.uint8), about
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(flat if flat.flags.writeable else flat.copy()), about


def make(data: torch.Tensor, about: dict[str, Any]) -> Any:
    """The array again, in its own memory. `data` must be filled by now."""
    np = numpy()
    dtype = _dtype(about["dtype"])
    shape = [int(length) for length in about["shape"]]
    order = about.get("order") or list(range(len(shape)))
    back = inverse(order, len(shape))
    array = np.empty([shape[n] for n in order], dtype)
    if array.nbytes != data.numel():
        raise ValueError("an array has another size than its bytes")
    if array.nbytes:
        array.reshape(-1).view(np.uint8)[:] = data.numpy()
    return array.transpose(back) if back != list(range(len(shape))) else array


def take_scalar(value: Any) -> list[Any]:
    kind = value.dtype.kind
    if kind == _TEXT:
        return [_TEXT, str(value)]
    if kind == _BYTES:
        return [_BYTES, base64.b64encode(bytes(value)).decode()]
    described = value.dtype.char if kind in _WHOLE else _describe(value.dtype)
    return [described, base64.b64encode(value.tobytes()).decode()]


def make_scalar(held: list[Any]) -> Any:
    np = numpy()
    described, text = held
    if described == _TEXT:
        return np.str_(text)
    data = base64.b64decode(text)
    if described == _BYTES:
        return np.bytes_(data)
    dtype = _dtype(described)
    if len(data) != dtype.itemsize:
        raise ValueError("a scalar has another size than its bytes")
    return np.frombuffer(data, dtype).copy()[0] if data else np.zeros((), dtype)[()]


def _describe(dtype: Any) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"of": _describe(base), "shape": list(shape)}
    if dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        return {
            "names": list(dtype.names),
            "formats": [_describe(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
    return dtype.str


def _dtype(described: Any) -> Any:
    np = numpy()
    if isinstance(described, str):
        dtype = np.dtype(described)
    elif "of" in described:
        dtype = np.dtype((_dtype(described["of"]), tuple(described["shape"])))
    else:
        dtype = np.dtype({**described, "formats": [_dtype(each) for each in described["formats"]]})
    if dtype.hasobject:
        raise ValueError("an array of objects is not valid here")
    return dtype


def _described(dtype: Any) -> bool:
    if dtype.hasobject:
        return False
    try:
        return bool(_dtype(_describe(dtype)) == dtype)
    except (TypeError, ValueError):
        return False
