"""`loom delete`: forget jobs that have ended."""

from __future__ import annotations

from torchloom.cli.options import JobsArgument, JsonOption, api

EXAMPLES = (("loom delete train-3f9a", "forget one job"),)


def command(jobs: JobsArgument, as_json: JsonOption = False) -> None:
    """Forget jobs that have ended. A running one must be stopped first."""
    from torchloom.cli import output

    client = api()
    for job in dict.fromkeys(jobs):
        client.delete(job)
        if as_json:
            output.show_line({"job": job, "deleted": True})
        else:
            print(f"{job} deleted")
