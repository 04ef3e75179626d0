"""What happens to a job, in sentences, each printed once. Pure: views of the API in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchloom.cli.fleet.incidents import is_news
from torchloom.cli.show import output

if TYPE_CHECKING:
    from torchloom.client.schema import IncidentView, JobDetail


class Story:
    """Remembers which sentences about one job were already printed."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._state = ""
        self._told: dict[str, bool] = {}
        """Incidents by id, and whether their end was reported."""
        self._paused = False
        self._version = 0
        self._decided: dict[str, str] = {}
        """The decision about each incident at its last report."""
        self._advised: set[str] = set()

    def tell(self, view: JobDetail) -> list[tuple[str, str]]:
        """The sentences that are new in this view, each with its mark."""
        told = self._incidents(view["incident_list"])
        state, first = view["state"], not self._state
        if state != self._state:
            self._state = state
            told = told or self._state_change(view, first)
        return told + self._steering(view)

    def _steering(self, view: JobDetail) -> list[tuple[str, str]]:
        """Changes that somebody made from elsewhere: pauses, settings."""
        told: list[tuple[str, str]] = []
        paused, version = bool(view.get("paused")), view.get("config_version", 0)
        if paused != self._paused:
            self._paused = paused
            hint = f"; `loom resume {self._job}` continues it"
            told.append((f"{self._job} is paused{hint}" if paused else f"{self._job} continues", ""))
        if version > self._version:
            told.append((f"config version {version} is in force; see `loom config {self._job}`", ""))
        self._version = max(version, self._version)
        return told

    def _state_change(self, view: JobDetail, first: bool) -> list[tuple[str, str]]:
        match view["state"]:
            case "starting" if first:
                return [(f"{self._job}: {_workers(view)} starting", "")]
            case "backoff" if any(_waits_for(one) for one in view["incident_list"][-1:]):
                return []  # the incident's sentence says the same
            case "waiting" | "backoff" | "stopping":
                return [(f"{view['state']}: {view['reason']}", "")]
            case "running" if view["generation"] <= 1:
                where = ", ".join(sorted({worker["node"] for worker in view["workers"]}))
                told = [(f"{self._job} is running: {_workers(view)} on {where}", "")]
                return told + [(text, "") for text in crowded(view)]
        return []

    def _incidents(self, incidents: list[IncidentView]) -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []
        for incident in incidents:
            id, took_s = incident["id"], incident["recovery_s"]
            sentence = "; ".join(filter(None, (incident["verdict"], incident["decision"])))
            news = self._decided.get(id) != incident["decision"] and is_news(incident)
            if sentence and (id not in self._told or (news and incident["open"])):
                self._told[id] = False
                self._decided[id] = incident["decision"]
                told.append((sentence, "bad"))
                if id not in self._advised and (fault := incident.get("fault")):
                    self._advised.add(id)
                    told.append((f"{fault['sentence']}. {fault['advice']}", ""))
            if not incident["open"] and incident["resolution"] and self._told.get(id) is False:
                self._told[id] = True
                told.append((incident["resolution"], "good"))
            if took_s is not None and self._told.get(id) is False:
                self._told[id] = True
                told.append((f"recovered: first step {output.seconds(took_s)} after the fault", "good"))
        return told


def crowded(view: JobDetail) -> list[str]:
    """A sentence for each device that has more workers than it has room for."""
    ranks: dict[str, int] = {}
    names: dict[str, tuple[str, int]] = {}
    for worker in view["workers"]:
        for device in worker["devices"]:
            ranks[device["device"]] = ranks.get(device["device"], 0) + 1
            cores = device["kind"] == "cpu"
            names[device["device"]] = (device["name"], _count(device["name"]) if cores else 1)
    return [
        f"{count} workers share {names[id][0] or id}: expect slow steps"
        for id, count in ranks.items()
        if count > names[id][1]
    ]


def _count(name: str) -> int:
    """How many cores `CPU cores 0-3,6` are."""
    parts = [part.split("-") for part in name.rpartition(" ")[2].split(",")]
    if not all(number.isdecimal() for part in parts for number in part):
        return len(parts)
    return sum(int(part[-1]) - int(part[0]) + 1 for part in parts)


def _waits_for(incident: IncidentView) -> bool:
    """Whether the job restarts because of this incident."""
    return incident["open"] and incident["action"] in ("restart", "wait")


def _workers(view: JobDetail) -> str:
    count = view["world_size"]
    return f"{count} worker{'s' if count != 1 else ''}"


def status_line(view: JobDetail) -> str:
    """One line: job, state, step, speed, time left, restarts."""
    parts = [f"{view['id']} {output.state(view)}", f"step {output.steps(view)}"]
    if view["steps_per_s"] > 0:
        parts.append(output.rate(view["steps_per_s"]))
    if view["eta_s"] is not None:
        parts.append(f"ETA {output.time_left(view['eta_s'])}")
    parts.append(f"{view['running_workers']}/{view['wanted_workers']} workers")
    if view["restarts"]:
        parts.append(f"{view['restarts']} restart{'s' if view['restarts'] != 1 else ''}")
    return " · ".join(parts)


def summary(view: JobDetail) -> str:
    """How the job ended, in one sentence with the numbers that matter."""
    took = [i["recovery_s"] for i in view["incident_list"] if i["recovery_s"] is not None]
    unseen = view["state"] == "completed" and not view["step"]
    parts = [f"{'' if unseen else str(view['step']) + ' steps '}in {output.seconds(view['elapsed_s'])}"]
    count = view["restarts"]
    if count:
        recovered = f", recovered in {', '.join(output.seconds(s) for s in took)}" if took else ""
        parts.append(f"{count} restart{'s' if count != 1 else ''}{recovered}")
    if unseen:
        # Without steps nobody knows how the time was spent.
        why = " since the last restart" if count else ": the workers ran no torch optimizer themselves"
        parts.append(f"no step was seen{why}")
    elif view["goodput"] is not None:
        parts.append(f"goodput {output.percent(view['goodput'])}")
    if view["state"] == "completed":
        return f"{view['id']} completed: {'; '.join(parts)}"
    return f"{view['id']} {view['state']} after {'; '.join(parts)}. {view['reason'].rstrip('.')}"
