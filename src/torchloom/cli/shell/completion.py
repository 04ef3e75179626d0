"""`loom completion`: a script that lets a shell complete `loom`. The candidates come from `complete.py`."""

from __future__ import annotations

from typing import Annotated

from torchloom.cli.declared import argument

EXAMPLES = (
    ('eval "$(loom completion bash)"', "in ~/.bashrc"),
    ('eval "$(loom completion zsh)"', "in ~/.zshrc, after compinit"),
    ("loom completion fish > ~/.config/fish/completions/loom.fish", "once"),
)

_BASH = """\
_loom() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _loom loom
"""
# Without candidates bash completes file names (-o default), which is right for scripts.

_ZSH = """\
#compdef loom
_loom() {
    local line
    local -a lines found
    lines=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in $lines; do
        found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    if (( $#found )); then _describe 'loom' found; else _files; fi
}
compdef _loom loom
"""

_FISH = """\
function __loom_complete
    set -l before (commandline -opc)
    $before[1] __complete $before[2..-1] (commandline -ct) 2>/dev/null
end
complete -c loom -f -a '(__loom_complete)'
complete -c loom -n '__fish_seen_subcommand_from run submit' -F
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def command(
    shell: Annotated[str, argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a completion script for bash, zsh or fish. It completes verbs, options and job ids."""
    from torchloom.errors import UsageError

    if shell not in SCRIPTS:
        raise UsageError(f"There is no completion for {shell!r}", hint=f"use {', '.join(SCRIPTS)}")
    print(SCRIPTS[shell], end="")
