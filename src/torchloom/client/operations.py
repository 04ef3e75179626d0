"""Made by scripts/make_client.py from the OpenAPI description.

Every operation as a method; may have over 400 lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from torchloom.client.transport import Event, Transport

if TYPE_CHECKING:
    from torchloom.client.schema import (
        AuthoritiesView,
        ChangePlanView,
        ChangeRequest,
        CheckpointList,
        CheckpointView,
        ConfigView,
        DeviceDetail,
        DeviceDrainRequest,
        DeviceFailure,
        DeviceMap,
        DeviceMarkView,
        DevicePolicyBody,
        DeviceReturn,
        DeviceTestAccepted,
        DeviceTestRequest,
        DrainRequest,
        FaultAccepted,
        FaultRequest,
        Health,
        HealthAccepted,
        HealthRequest,
        HistoryView,
        Identity,
        IncidentDetail,
        IncidentView,
        JobCreated,
        JobDetail,
        JobLogs,
        JobRequest,
        JobSeries,
        JobSummary,
        JobTelemetry,
        JoinRequest,
        JoinTokenRequest,
        JoinTokenText,
        JoinView,
        LinksView,
        LoginLink,
        LoginRequest,
        NodeView,
        OperationAccepted,
        OperationView,
        PodJoinRequest,
        ProbeRequest,
        PurgeRequest,
        PurgeResult,
        RankSeries,
        RanksNow,
        ReasonRequest,
        ReplayView,
        RestartAccepted,
        RestartRequest,
        RestoreAccepted,
        RestoreRequest,
        RevertRequest,
        ScaleAccepted,
        ScaleRequest,
        StopRequest,
        Stragglers,
        TestImport,
        TestImported,
        TokenMade,
        TokenRequest,
        TokenView,
        Versions,
    )


class Operations(Transport):
    def health(self) -> Health:
        """Health"""
        found: Health = self.request("GET", "/health")
        return found

    def login(self, body: LoginRequest) -> Identity:
        """Exchange a token, or a one-time code of `/login/link`, for a session cookie, so that a browser
        need
        not keep the token.
        """
        found: Identity = self.request("POST", "/login", body=body)
        return found

    def login_link(self) -> LoginLink:
        """A one-time code that signs a browser in as the caller. The page takes it from a link's fragment:
        `/#/sign-in/CODE`.
        """
        found: LoginLink = self.request("POST", "/login/link")
        return found

    def logout(self) -> None:
        """End the session: its cookie is invalid from now on, wherever it was copied to."""
        self.request("POST", "/logout")

    def whoami(self) -> Identity:
        """Whoami"""
        found: Identity = self.request("GET", "/whoami")
        return found

    def tokens(self) -> list[TokenView]:
        """All Tokens"""
        found: list[TokenView] = self.request("GET", "/tokens")
        return found

    def make_token(self, body: TokenRequest) -> TokenMade:
        """Make"""
        found: TokenMade = self.request("POST", "/tokens", body=body)
        return found

    def remove_token(self, name: str) -> None:
        """Remove"""
        self.request("DELETE", f"/tokens/{quote(name, safe='')}")

    def submit(self, body: JobRequest, *, idempotency_key: str | None = None) -> JobCreated:
        """Start a job. A retry with the same `Idempotency-Key` and body returns the same job with 200."""
        found: JobCreated = self.request(
            "POST", "/jobs", body=body, headers={"idempotency-key": idempotency_key}
        )
        return found

    def jobs(
        self,
        *,
        state: list[
            Literal[
                "waiting",
                "starting",
                "running",
                "recovering",
                "backoff",
                "stopping",
                "completed",
                "failed",
                "stopped",
            ]
        ]
        | None = None,
        label: list[str] | None = None,
        active: bool | None = None,
        sort: Literal["submitted", "-submitted", "ended", "-ended", "id", "-id", "state", "-state"]
        | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> list[JobSummary]:
        """A page of jobs. If there are more, `X-Next-Cursor` and a `Link` with rel="next" lead to them.

        `label` is `key` or `key=value` and may be repeated, as may `state`.
        """
        found: list[JobSummary] = self.request(
            "GET",
            "/jobs",
            {
                "state": state,
                "label": label,
                "active": active,
                "sort": sort,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def summaries(
        self,
        *,
        state: list[
            Literal[
                "waiting",
                "starting",
                "running",
                "recovering",
                "backoff",
                "stopping",
                "completed",
                "failed",
                "stopped",
            ]
        ]
        | None = None,
        label: list[str] | None = None,
        active: bool | None = None,
        sort: Literal["submitted", "-submitted", "ended", "-ended", "id", "-id", "state", "-state"]
        | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> list[JobSummary]:
        """A page of jobs. If there are more, `X-Next-Cursor` and a `Link` with rel="next" lead to them.

        `label` is `key` or `key=value` and may be repeated, as may `state`.
        """
        found: list[JobSummary] = self.request(
            "GET",
            "/jobs/summaries",
            {
                "state": state,
                "label": label,
                "active": active,
                "sort": sort,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def purge(self, body: PurgeRequest | None = None) -> PurgeResult:
        """Delete ended jobs by age, state and label; with `dry_run` only say which."""
        found: PurgeResult = self.request("POST", "/jobs/purge", body=body)
        return found

    def job(self, job: str, *, after: int | None = None, wait_s: float | None = None) -> JobDetail:
        """One job. With `after`, wait up to `wait_s` for a state of the fleet newer than that."""
        found: JobDetail = self.request(
            "GET", f"/jobs/{quote(job, safe='')}", {"after": after, "wait_s": wait_s}
        )
        return found

    def delete(
        self,
        job: str,
        *,
        force: bool | None = None,
        keep_logs: bool | None = None,
        keep_checkpoints: bool | None = None,
    ) -> None:
        """Delete an ended job and its logs. `force` kills a running job first.

        Checkpoints stay unless `keep_checkpoints=false`; then all are deleted, also pinned ones, and a
        job
        whose checkpoints cannot be deleted stays.
        """
        self.request(
            "DELETE",
            f"/jobs/{quote(job, safe='')}",
            {"force": force, "keep_logs": keep_logs, "keep_checkpoints": keep_checkpoints},
        )

    def summary(self, job: str) -> JobSummary:
        """Summary"""
        found: JobSummary = self.request("GET", f"/jobs/{quote(job, safe='')}/summary")
        return found

    def stop(self, job: str, body: StopRequest | None = None) -> JobCreated:
        """Stop a job: at a step boundary if it trains, then by SIGTERM, then after the grace by SIGKILL."""
        found: JobCreated = self.request("POST", f"/jobs/{quote(job, safe='')}/stop", body=body)
        return found

    def telemetry(self, job: str, *, rank: int | None = None, newest: int | None = None) -> JobTelemetry:
        """What the black boxes hold: the `newest` steps and collectives of each rank, groups, metrics."""
        found: JobTelemetry = self.request(
            "GET", f"/jobs/{quote(job, safe='')}/telemetry", {"rank": rank, "newest": newest}
        )
        return found

    def logs(
        self,
        job: str,
        *,
        rank: int | None = None,
        tail: int | None = None,
        offset: int | None = None,
        grep: str | None = None,
        since: str | None = None,
        interleaved: bool | None = None,
        unfinished: bool | None = None,
    ) -> JobLogs:
        """The last `tail` (100) lines of each rank, or what comes after the byte `offset` or `since` a
        time.

        With `grep`, only lines that contain this text. `since` is a time as in RFC 3339, or a span of
        time
        ago like `10m`. A piece is less than a MiB; `next_offset` leads on. With `interleaved`, `lines`
        has
        the lines of all ranks in the order in which they were printed, and `text` is empty. With
        `unfinished` too, the newest part of a line that has no end yet, such as a progress bar, comes
        last.
        """
        found: JobLogs = self.request(
            "GET",
            f"/jobs/{quote(job, safe='')}/logs",
            {
                "rank": rank,
                "tail": tail,
                "offset": offset,
                "grep": grep,
                "since": since,
                "interleaved": interleaved,
                "unfinished": unfinished,
            },
        )
        return found

    def log_stream(
        self,
        job: str,
        *,
        rank: int | None = None,
        tail: int | None = None,
        grep: str | None = None,
        since: str | None = None,
        unfinished: bool | None = None,
        last_event_id: str | None = None,
    ) -> Iterator[Event]:
        """Server-sent events `log` and finally `end`; `tail` or `since` set how far back it starts.

        Lines of several ranks come in the order in which they were printed. With `unfinished`, events
        `unfinished` show what a rank's last line looks like while it has no end.
        """
        return self.stream(
            f"/jobs/{quote(job, safe='')}/logs/stream",
            last_event_id,
            rank=rank,
            tail=tail,
            grep=grep,
            since=since,
            unfinished=unfinished,
        )

    def checkpoints(self, job: str) -> CheckpointList:
        """List checkpoints, newest first. This reads the store, so it may take as long as a listing there."""
        found: CheckpointList = self.request("GET", f"/jobs/{quote(job, safe='')}/checkpoints")
        return found

    def verify_checkpoint(self, job: str, name: str) -> CheckpointView:
        """Verify all checksums, however long it takes. A damaged one is marked and never used again."""
        found: CheckpointView = self.request(
            "POST", f"/jobs/{quote(job, safe='')}/checkpoints/{quote(name, safe='')}/verify"
        )
        return found

    def pin_checkpoint(self, job: str, name: str) -> CheckpointView:
        """Keep this checkpoint, whatever the keep rules say."""
        found: CheckpointView = self.request(
            "POST", f"/jobs/{quote(job, safe='')}/checkpoints/{quote(name, safe='')}/pin"
        )
        return found

    def unpin_checkpoint(self, job: str, name: str) -> CheckpointView:
        """Unpin"""
        found: CheckpointView = self.request(
            "POST", f"/jobs/{quote(job, safe='')}/checkpoints/{quote(name, safe='')}/unpin"
        )
        return found

    def delete_checkpoint(self, job: str, name: str) -> None:
        """Delete a checkpoint. Refused for a pinned one and for the one that a restart would use."""
        self.request("DELETE", f"/jobs/{quote(job, safe='')}/checkpoints/{quote(name, safe='')}")

    def restore(self, job: str, body: RestoreRequest) -> RestoreAccepted:
        """Resume from an earlier step: a job that has ended starts again; a running job goes back on all
        ranks at one step, or is restarted if its script cannot do that.

        Refused, before anything is stopped, if the checkpoint of that step is missing or damaged.
        """
        found: RestoreAccepted = self.request("POST", f"/jobs/{quote(job, safe='')}/restore", body=body)
        return found

    def config(self, job: str) -> ConfigView:
        """Every setting with its type, its value in every place and what controls it; and the schedule."""
        found: ConfigView = self.request("GET", f"/jobs/{quote(job, safe='')}/config")
        return found

    def change(self, job: str, body: ChangeRequest, *, idempotency_key: str | None = None) -> ChangePlanView:
        """Change settings on all ranks at one step, or on none; 202. A `dry_run` returns the plan, with
        200.

        An invalid change is refused before any rank receives it. A retry with the same `Idempotency-
        Key`
        returns the operation it made before.
        """
        found: ChangePlanView = self.request(
            "PATCH",
            f"/jobs/{quote(job, safe='')}/config",
            body=body,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def config_history(self, job: str) -> list[HistoryView]:
        """Who changed what, when, why, and from which step on; oldest first."""
        found: list[HistoryView] = self.request("GET", f"/jobs/{quote(job, safe='')}/config/history")
        return found

    def revert(
        self, job: str, body: RevertRequest | None = None, *, idempotency_key: str | None = None
    ) -> ChangePlanView:
        """Undo the last change, or go back to an earlier version: a change like any other, at one step."""
        found: ChangePlanView = self.request(
            "POST",
            f"/jobs/{quote(job, safe='')}/config/revert",
            body=body,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def pause(
        self, job: str, body: ReasonRequest | None = None, *, idempotency_key: str | None = None
    ) -> OperationAccepted:
        """Hold all ranks before one step; they keep memory, devices and connections."""
        found: OperationAccepted = self.request(
            "POST",
            f"/jobs/{quote(job, safe='')}/pause",
            body=body,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def resume(
        self, job: str, body: ReasonRequest | None = None, *, idempotency_key: str | None = None
    ) -> OperationAccepted:
        """A paused job continues with the step it was paused before."""
        found: OperationAccepted = self.request(
            "POST",
            f"/jobs/{quote(job, safe='')}/resume",
            body=body,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def checkpoint_now(
        self, job: str, body: ReasonRequest | None = None, *, idempotency_key: str | None = None
    ) -> OperationAccepted:
        """Save the state after one step on all ranks. `applied` means taken; it is written while training
        continues, and the operation's `saved` or `unsaved` reports how that ended.
        """
        found: OperationAccepted = self.request(
            "POST",
            f"/jobs/{quote(job, safe='')}/checkpoint",
            body=body,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def operations(self, job: str, *, active: bool | None = None) -> list[OperationView]:
        """Operations of a job, oldest first; the newest 256 are kept. `active`: only those in progress."""
        found: list[OperationView] = self.request(
            "GET", f"/jobs/{quote(job, safe='')}/operations", {"active": active}
        )
        return found

    def operation(
        self,
        job: str,
        operation: str,
        *,
        wait_s: float | None = None,
        state: Literal["waiting", "preparing", "arming", "confirmed", "applied", "not applied", "diverged"]
        | None = None,
    ) -> OperationView:
        """One operation. With `wait_s`, wait until it ends; with `state` too, until it leaves that state."""
        found: OperationView = self.request(
            "GET",
            f"/jobs/{quote(job, safe='')}/operations/{quote(operation, safe='')}",
            {"wait_s": wait_s, "state": state},
        )
        return found

    def cancel_operation(self, job: str, operation: str) -> OperationAccepted:
        """Cancel an operation in progress. Once every rank is armed the ranks decide, and the outcome
        reports
        what they did.
        """
        found: OperationAccepted = self.request(
            "DELETE", f"/jobs/{quote(job, safe='')}/operations/{quote(operation, safe='')}"
        )
        return found

    def inject(self, job: str, body: FaultRequest) -> FaultAccepted:
        """Inject a fault, to see how it is reported and handled. For admins only."""
        found: FaultAccepted = self.request("POST", f"/jobs/{quote(job, safe='')}/faults", body=body)
        return found

    def nodes(self) -> list[NodeView]:
        """Nodes"""
        found: list[NodeView] = self.request("GET", "/nodes")
        return found

    def node_gone(self, node: str) -> NodeView:
        """Confirm that the host of an unreachable node is gone, so that its jobs recover elsewhere.

        Refused with 409 while the node is reachable. If the host comes back, its old workers are
        killed.
        """
        found: NodeView = self.request("POST", f"/nodes/{quote(node, safe='')}/gone")
        return found

    def drain_node(self, node: str, body: DrainRequest) -> NodeView:
        """Place no new workers on this node until it is opened again, and move its jobs elsewhere: each is
        saved, stopped at a step boundary and resumed from there. That does not count against its
        restarts.

        A job that has no room elsewhere or cannot be saved stays and keeps training; `leaving` says
        why.
        `force` also moves jobs that cannot be saved; `keep` moves none.
        """
        found: NodeView = self.request("POST", f"/nodes/{quote(node, safe='')}/drain", body=body)
        return found

    def open_node(self, node: str) -> NodeView:
        """Allow workers on a drained node again, also those of jobs that a policy moved away from it."""
        found: NodeView = self.request("POST", f"/nodes/{quote(node, safe='')}/open")
        return found

    def incidents(self, *, job: str | None = None) -> list[IncidentView]:
        """Of one job, or of all jobs and of the control plane itself. The `job` of the latter is empty."""
        found: list[IncidentView] = self.request("GET", "/incidents", {"job": job})
        return found

    def incident(self, incident: str) -> IncidentDetail:
        """Incident"""
        found: IncidentDetail = self.request("GET", f"/incidents/{quote(incident, safe='')}")
        return found

    def make_join_token(self, body: JoinTokenRequest) -> JoinTokenText:
        """A token that admits hosts for a while. It is shown once."""
        found: JoinTokenText = self.request("POST", "/join/tokens", body=body)
        return found

    def join_authorities(self) -> AuthoritiesView:
        """The certificates that prove servers of this cluster. Whoever has no other proof of this
        connection
        compares their SHA-256 with the one in the join token.
        """
        found: AuthoritiesView = self.request("GET", "/join/ca")
        return found

    def join(self, body: JoinRequest) -> JoinView:
        """Admit a host as a node. The token is the proof; the host keeps the secret half of its key."""
        found: JoinView = self.request("POST", "/join", body=body)
        return found

    def join_pod(self, body: PodJoinRequest) -> JoinView:
        """Admit a pod as the node with its name. Kubernetes proves whose token it is (TokenReview)."""
        found: JoinView = self.request("POST", "/join/pod", body=body)
        return found

    def revoke_node(self, node: str) -> None:
        """Take back the credential of a host that joined: its connections end, and new ones are refused.
        Its
        workers are not touched; `loom node gone` replaces them.
        """
        self.request("POST", f"/nodes/{quote(node, safe='')}/revoke")

    def replay(self, incident: str) -> ReplayView:
        """Apply the recorded events around an incident to the core again, and explain each of them: what
        it
        changed, what the core decided and why, and whether the stream recorded the same decision.
        """
        found: ReplayView = self.request("GET", f"/incidents/{quote(incident, safe='')}/replay")
        return found

    def devices(self) -> DeviceMap:
        """Every device with the workers on it, and every worker with its devices."""
        found: DeviceMap = self.request("GET", "/devices")
        return found

    def device(self, device: str) -> DeviceDetail:
        """One device, with its health, its measurements and its history.

        `device` is its id, or the beginning of it that no other device has, here and below.
        """
        found: DeviceDetail = self.request("GET", f"/devices/{quote(device, safe='')}")
        return found

    def fail_device(self, device: str, body: DeviceFailure) -> DeviceMarkView:
        """Report that a device failed. The jobs with a worker on it are restarted without it at once: on
        another device, on their standby or with fewer workers; a job without room waits. That does not
        count
        against their restarts. The device gets no worker until it is returned.
        """
        found: DeviceMarkView = self.request("POST", f"/devices/{quote(device, safe='')}/failures", body=body)
        return found

    def drain_device(self, device: str, body: DeviceDrainRequest) -> DeviceMarkView:
        """Take a working device out of use: its jobs are saved, stopped at a step boundary, and resumed
        without it. A job that has no room elsewhere or cannot be saved stays and keeps training;
        `leaving`
        of the device says why. Returning the device cancels it.
        """
        found: DeviceMarkView = self.request("POST", f"/devices/{quote(device, safe='')}/drain", body=body)
        return found

    def return_device(self, device: str, body: DeviceReturn) -> DeviceDetail:
        """Allow workers on a device again, or cancel its drain. With `test` it is tested first, for some
        seconds, and returned only if it passes; its state is `testing` meanwhile.
        """
        found: DeviceDetail = self.request("POST", f"/devices/{quote(device, safe='')}/return", body=body)
        return found

    def test_device(self, device: str, body: DeviceTestRequest) -> DeviceTestAccepted:
        """Test a device that no worker uses: compute, memory and communication, each result checked, for
        some seconds. It gets no worker meanwhile. The result is in its `tests`; one that it failed
        makes its
        health `failing`.
        """
        found: DeviceTestAccepted = self.request("POST", f"/devices/{quote(device, safe='')}/test", body=body)
        return found

    def import_tests(self, body: TestImport) -> TestImported:
        """Record results of tests that ran elsewhere, for example of SuperBench. One that did not pass
        makes
        the device's health `failing`.
        """
        found: TestImported = self.request("POST", "/device-tests", body=body)
        return found

    def report_health(self, device: str, body: HealthRequest) -> HealthAccepted:
        """For external monitors: report a device's class of health. The class is recorded when it changes,
        and the policy for devices decides what follows; `failed` replaces the workers on it by default.
        """
        found: HealthAccepted = self.request("POST", f"/devices/{quote(device, safe='')}/health", body=body)
        return found

    def device_policy(self) -> DevicePolicyBody:
        """What is done when a device's health gets worse."""
        found: DevicePolicyBody = self.request("GET", "/device-policy")
        return found

    def set_device_policy(self, body: DevicePolicyBody) -> DevicePolicyBody:
        """Set what is done when a device's health gets worse: `ignore`, `report`, `drain` or `fail`."""
        found: DevicePolicyBody = self.request("PUT", "/device-policy", body=body)
        return found

    def scale(self, job: str, body: ScaleRequest) -> ScaleAccepted:
        """Continue with another number of workers: the job stops at a step boundary and restarts from its
        newest checkpoint. 409 outside its min_workers and max_workers, or if there is no room.
        """
        found: ScaleAccepted = self.request("POST", f"/jobs/{quote(job, safe='')}/scale", body=body)
        return found

    def restart(self, job: str, body: RestartRequest) -> RestartAccepted:
        """Begin again from the newest checkpoint: a job that has ended, or one that runs (it stops at a
        step
        boundary first). 409 if its new last step is past.
        """
        found: RestartAccepted = self.request("POST", f"/jobs/{quote(job, safe='')}/restart", body=body)
        return found

    def probe(
        self, job: str, body: ProbeRequest | None = None, *, idempotency_key: str | None = None
    ) -> OperationAccepted:
        """Let all ranks measure their links pair by pair at one step. `applied` means measured; `GET
        /jobs/{job}/links` returns the result.
        """
        found: OperationAccepted = self.request(
            "POST",
            f"/jobs/{quote(job, safe='')}/probe",
            body=body,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def links(self, job: str) -> LinksView:
        """The newest delay matrix. 404 if the links were never measured."""
        found: LinksView = self.request("GET", f"/jobs/{quote(job, safe='')}/links")
        return found

    def stragglers(self, job: str) -> Stragglers:
        """What every rank costs the job now: in steps per second and as a share of its speed."""
        found: Stragglers = self.request("GET", f"/jobs/{quote(job, safe='')}/stragglers")
        return found

    def series(
        self,
        job: str,
        *,
        name: list[str] | None = None,
        last_s: float | None = None,
        points: int | None = None,
    ) -> JobSeries:
        """Numbers of a job over time: of the last `last_s` seconds, or of its whole life if that is 0.

        Each is merged into at most `points` points with mean, lowest and highest. Without `name`, all.
        """
        found: JobSeries = self.request(
            "GET", f"/jobs/{quote(job, safe='')}/series", {"name": name, "last_s": last_s, "points": points}
        )
        return found

    def rank_series(
        self,
        job: str,
        *,
        what: Literal["own", "wait", "data", "phase"] | None = None,
        last_s: float | None = None,
        columns: int | None = None,
        rows: int | None = None,
    ) -> RankSeries:
        """Every rank over time: own time of a step, waiting for others, waiting for data, or its phase.

        With more ranks than `rows`, a row covers several ranks and shows the highest of them.
        """
        found: RankSeries = self.request(
            "GET",
            f"/jobs/{quote(job, safe='')}/series/ranks",
            {"what": what, "last_s": last_s, "columns": columns, "rows": rows},
        )
        return found

    def ranks(self, job: str) -> RanksNow:
        """All ranks now, in columns."""
        found: RanksNow = self.request("GET", f"/jobs/{quote(job, safe='')}/ranks")
        return found

    def events(
        self,
        *,
        topic: list[Literal["job", "worker", "incident", "node", "device", "config", "system"]] | None = None,
        kind: list[str] | None = None,
        job: str | None = None,
        after: int | None = None,
        follow: bool | None = None,
        last_event_id: str | None = None,
    ) -> Iterator[Event]:
        """Live from now on, or from `after` or `Last-Event-ID`. With `follow=false` it ends with the
        present.

        `after=0` begins with the oldest event that is kept. Where events after another place are no
        longer
        kept, a `reset` comes first.

        `topic` is job, worker, incident, node, device, config or system (the last only when asked for);
        `kind` is the name of an event such as `worker-exited`.
        """
        return self.stream(
            "/events", last_event_id, topic=topic, kind=kind, job=job, after=after, follow=follow
        )

    def versions(self) -> Versions:
        """Which version runs where."""
        found: Versions = self.request("GET", "/versions")
        return found

    def metrics(self) -> str:
        """Metrics"""
        found: str = self.request("GET", "/metrics")
        return found
