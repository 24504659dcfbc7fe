"""The sample of texts: which texts the tool finds, and that the same seed gives the same sample."""

from pathlib import Path

from tools.sample_texts import sample, texts_of

SOURCE = '''"""What this module is good for."""

LIMIT = 3  # the peer refuses more
LEAST = 1  # otherwise nothing is sent
"""How many of them there may be."""


def send(name: str) -> None:
    """Send it to the peer
    at once.

    Nothing is sent twice.
    """
    # The peer may have closed the link,
    # and then there is nothing to send.
    raise ValueError(f"{name} has no link to send over")
'''
PAGE = """# A title is not judged

One sentence stands here. Another one follows it.

```sh
this command is not a sentence
```
"""


def repository(root: Path) -> Path:
    (root / "src").mkdir()
    (root / "docs").mkdir()
    (root / "src" / "module.py").write_text(SOURCE)
    (root / "docs" / "page.md").write_text(PAGE)
    (root / "README.md").write_text("This project sends things to peers.\n")
    return root


def test_every_kind_of_text_is_found_with_its_line(tmp_path: Path) -> None:
    found = {(text.kind, text.place, text.words) for text in texts_of(repository(tmp_path))}
    assert found == {
        ("docstring", "src/module.py:1", "What this module is good for."),
        ("docstring", "src/module.py:5", "How many of them there may be."),
        ("comment", "src/module.py:3", "the peer refuses more"),
        ("comment", "src/module.py:4", "otherwise nothing is sent"),
        ("docstring", "src/module.py:9", "Send it to the peer at once.\nNothing is sent twice."),
        (
            "comment",
            "src/module.py:14",
            "The peer may have closed the link, and then there is nothing to send.",
        ),
        ("message", "src/module.py:16", "{} has no link to send over"),
        ("documentation", "docs/page.md:3", "One sentence stands here."),
        ("documentation", "docs/page.md:3", "Another one follows it."),
        ("documentation", "README.md:1", "This project sends things to peers."),
    }


def test_a_seed_gives_one_sample_and_another_seed_another(tmp_path: Path) -> None:
    texts = texts_of(repository(tmp_path))
    assert sample(texts, 2, seed=1) == sample(texts, 2, seed=1)
    assert len({tuple(sample(texts, 2, seed=seed)) for seed in range(20)}) > 1


def test_every_group_has_as_many_texts(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / "src" / "polyrhythm" / "core").mkdir(parents=True)
    (root / "src" / "polyrhythm" / "core" / "module.py").write_text(SOURCE)
    (root / "tests").mkdir()
    (root / "tests" / "test_module.py").write_text(SOURCE)
    drawn = sample(texts_of(root), 2, seed=1)
    groups = ["core", "source", "tests", "documents", "messages"]
    assert [text.group for text in drawn] == [group for group in groups for _ in range(2)]
    assert all("core/" in text.place for text in drawn if text.group == "core")
