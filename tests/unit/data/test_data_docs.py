"""The snippets of docs/data.md run."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = Path(__file__).parents[3] / "docs" / "data.md"


def test_every_snippet_runs(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", TEXT.read_text(), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(snippet, {"folder": tmp_path})
