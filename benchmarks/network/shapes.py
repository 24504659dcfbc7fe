"""The sizes of the layers of three models, without their computation. A slice does not straddle
groups, but it does straddle layers, so their sizes decide only where a model is cut."""

from collections.abc import Iterator

Shape = tuple[int, ...]


def resnet50(classes: int = 10) -> Iterator[Shape]:
    yield (64, 3, 7, 7)
    yield from _norm(64)
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in (
                (width, inside, 1, 1),
                (width, width, 3, 3),
                (4 * width, width, 1, 1),
            ):
                yield shape
                yield from _norm(shape[0])
            if block == 0:
                yield (4 * width, inside, 1, 1)
                yield from _norm(4 * width)
            inside = 4 * width
    yield from _dense(inside, classes)


def alexnet(classes: int = 10) -> Iterator[Shape]:
    inside = 3
    for width, size in ((64, 11), (192, 5), (384, 3), (256, 3), (256, 3)):
        yield (width, inside, size, size)
        yield (width,)
        inside = width
    for outputs, inputs in ((4096, 256 * 6 * 6), (4096, 4096), (classes, 4096)):
        yield from _dense(inputs, outputs)


def mobilenet(classes: int = 1000) -> Iterator[Shape]:
    """MobileNet v3 (large): size of the kernel, width inside, width after, and whether the block has
    a layer of squeeze and excitation."""
    yield (16, 3, 3, 3)
    yield from _norm(16)
    before = 16
    for kernel, inner, after, squeezed in _MOBILENET_BLOCKS:
        if inner != before:
            yield (inner, before, 1, 1)
            yield from _norm(inner)
        yield (inner, 1, kernel, kernel)
        yield from _norm(inner)
        if squeezed:
            narrow = _eighths(inner // 4)
            yield from _dense(inner, narrow)
            yield from _dense(narrow, inner)
        yield (after, inner, 1, 1)
        yield from _norm(after)
        before = after
    yield (960, before, 1, 1)
    yield from _norm(960)
    yield from _dense(960, 1280)
    yield from _dense(1280, classes)


_MOBILENET_BLOCKS = (
    (3, 16, 16, False),
    (3, 64, 24, False),
    (3, 72, 24, False),
    (5, 72, 40, True),
    (5, 120, 40, True),
    (5, 120, 40, True),
    (3, 240, 80, False),
    (3, 200, 80, False),
    (3, 184, 80, False),
    (3, 184, 80, False),
    (3, 480, 112, True),
    (3, 672, 112, True),
    (5, 672, 160, True),
    (5, 960, 160, True),
    (5, 960, 160, True),
)


def _norm(width: int) -> Iterator[Shape]:
    yield (width,)
    yield (width,)


def _dense(inputs: int, outputs: int) -> Iterator[Shape]:
    yield (outputs, inputs)
    yield (outputs,)


def _eighths(width: int) -> int:
    """The multiple of 8 next to this width, but not below nine tenths of it."""
    near = max(8, (width + 4) // 8 * 8)
    return near + 8 if near < 0.9 * width else near


def flat(nbytes: int) -> Iterator[Shape]:
    """One layer of this size."""
    yield (nbytes // 4,)


MODELS = {"mobilenet": mobilenet, "resnet50": resnet50, "alexnet": alexnet}


def shapes_of(model: str) -> list[Shape]:
    """`model`: a name, or a number of bytes."""
    return list(flat(int(model)) if model.isdigit() else MODELS[model]())


def nbytes_of(model: str) -> int:
    total = 0
    for shape in shapes_of(model):
        count = 1
        for length in shape:
            count *= length
        total += 4 * count
    return total
