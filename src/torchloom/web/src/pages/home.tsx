// Home: is everything all right? Jobs, what is open, nodes.
import { useMemo, useState } from "preact/hooks";
import type { IncidentView, JobSummary, NodeView } from "../api";
import { count, digits, percent, plural, span } from "../format";
import { standing, useCell, useQuery } from "../live";
import { Ago, Bar, Nothing, Section, Time, Trouble, useSome } from "../parts/bits";
import { failed, JobState, Mark, State, type Tone } from "../parts/mark";
import { NodeActions, SubmitJob } from "../parts/actions";
import { DevicesOut } from "../parts/devices";
import { link } from "../session";

export function Home() {
  const jobs = useQuery<JobSummary[]>("/jobs?sort=-submitted", { every: 2000 });
  const nodes = useQuery<NodeView[]>("/nodes", { every: 3000, on: (e) => e.topics.includes("node") || e.topics.includes("job") });
  const incidents = useQuery<IncidentView[]>("/incidents", { on: (e) => e.incidents.length > 0 });
  const stands = (id: string) => isStalled(jobs.data?.find((job) => job.id === id));
  const open = useMemo(() => (incidents.data ?? []).filter((one) => one.open).sort((a, b) => Number(stands(b.job)) - Number(stands(a.job))), [incidents.data, jobs.data]);
  if (!jobs.data) return jobs.error ? <Trouble error={jobs.error} /> : <p class="dim">Reading…</p>;
  return (
    <>
      <h1 class="only-read">All jobs</h1>
      <Summary jobs={jobs.data} open={open} nodes={nodes.data ?? []} />
      <Trouble error={jobs.error} />
      {open.slice(0, 5).map((one) => <Open key={one.id} incident={one} bad={stands(one.job)} />)}
      {open.length > 5 && <p class="dim">and {plural(open.length - 5, "more open incident")}, at their jobs below</p>}
      <Jobs jobs={jobs.data} open={open} />
      <Nodes nodes={nodes.data} error={nodes.error} />
      <DevicesOut />
      <Recent incidents={(incidents.data ?? []).filter((one) => !one.open)} />
    </>
  );
}

const RECENT_MS = 24 * 3600 * 1000;

function Summary({ jobs, open, nodes }: { jobs: JobSummary[]; open: IncidentView[]; nodes: NodeView[] }) {
  const living = jobs.filter((job) => !job.ended);
  const running = living.filter((job) => job.state === "running");
  const away = nodes.filter((node) => node.seen_s !== null && node.seen_s > 3);
  const lost = useCell(standing) === "lost";
  const failures = jobs.filter((job) => job.state === "failed" && job.ended_at_ns > (Date.now() - RECENT_MS) * 1e6);
  const bad = open.some((one) => isStalled(jobs.find((job) => job.id === one.job)));
  const tone: Tone = lost ? "wait" : bad ? "bad" : open.length || away.length || failures.length ? "warn" : "ok";
  const parts = [
    open.length ? plural(open.length, "open incident") : failures.length ? "No open incident" : lost ? "Nothing was wrong" : "Nothing is wrong",
    failures.length ? `${plural(failures.length, "job")} failed in the last 24 hours` : "",
    living.length ? `${count(running.length)} of ${plural(living.length, "job")} running` : "no job is running",
    away.length ? `${plural(away.length, "node")} not reachable` : "",
  ].filter(Boolean);
  return (
    <p class="calm" role="status">
      <Mark tone={tone} />
      <span>{lost && "Last known: "}{parts.join(" · ")}</span>
    </p>
  );
}

/** Of what runs and loses time an incident is a note; of what stands or has failed it is bad. */
function isStalled(job: JobSummary | undefined): boolean {
  return !job || job.state !== "running" || (job.steps_per_s === 0 && !job.paused);
}

function Open({ incident, bad }: { incident: IncidentView; bad: boolean }) {
  return (
    <article class={bad ? "verdict" : "verdict note"}>
      <p class="says">{incident.verdict}</p>
      {incident.decision && <p class="dim">{incident.decision}</p>}
      <p class="foot">
        <a href={link("incident", incident.id)}>{incident.id}</a>
        {incident.job && <a href={link("job", incident.job)}>{incident.job}</a>}
        <span class="dim"><Ago ns={incident.timeline.detected_ns} /></span>
      </p>
    </article>
  );
}

function Jobs({ jobs, open }: { jobs: JobSummary[]; open: IncidentView[] }) {
  const [text, setText] = useState("");
  const found = useMemo(() => {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = jobs.filter((job) => wanted.every((word) => words(job).includes(word)));
    return shown.sort((a, b) => b.submitted_at_ns - a.submitted_at_ns);
  }, [jobs, text]);
  const [living, moreLiving] = useSome(found.filter((job) => !job.ended), 100);
  const [ended, moreEnded] = useSome(found.filter((job) => job.ended), living.length > 8 ? 5 : 12);
  return (
    <Section
      id="jobs"
      title={plural(jobs.length, "job")}
      aside={
        <>
          {jobs.length > 8 && <input type="search" aria-label="Filter jobs" placeholder="filter: name, state, label" value={text} onInput={(e) => setText(e.currentTarget.value)} />}
          <SubmitJob />
        </>
      }
    >
      {!jobs.length ? (
        <Nothing>
          No job yet. <code>loom run train.py</code> starts one; <code>loom demo</code> shows a recovery.
        </Nothing>
      ) : !found.length ? (
        <Nothing>No job has all of these words.</Nothing>
      ) : (
        <div class="scroll">
          <table class="stack">
            <thead>
              <tr>
                <th>State</th><th>Job</th><th class="n">Step</th><th>Progress</th><th class="n">Pace</th><th class="n">Left</th><th class="n">Goodput</th><th class="n">Workers</th><th class="n">Incidents</th><th class="n">Submitted</th>
              </tr>
            </thead>
            <tbody>{[...living, ...ended].map((job) => <Row key={job.id} job={job} open={open.filter((one) => one.job === job.id).length} />)}</tbody>
          </table>
          {moreLiving}
          {moreEnded && <p class="dim">Ended: {moreEnded}</p>}
        </div>
      )}
    </Section>
  );
}

const words = (job: JobSummary) => `${job.id} ${job.state} ${job.paused ? "paused" : ""} ${job.program} ${Object.entries(job.labels).map(([k, v]) => `${k}=${v}`).join(" ")}`.toLowerCase();

function Row({ job, open }: { job: JobSummary; open: number }) {
  const failed = job.state === "failed" || job.state === "waiting" || job.state === "backoff";
  return (
    <tr>
      <td><JobState job={job} stalled={open > 0 && isStalled(job)} /></td>
      <td class="name">
        <a href={link("job", job.id)}>{job.id}</a>
        <span class="sub">{failed ? job.reason : [job.program.split("/").pop(), ...Object.entries(job.labels).map(([k, v]) => `${k}=${v}`)].join(" · ")}</span>
      </td>
      <td class="n" data-name="step">
        {count(job.step)}
        {job.total_steps ? <span class="dim"> / {count(job.total_steps)}</span> : ""}
      </td>
      <td class={job.progress === null ? "blank" : ""} data-name="">{job.progress === null ? "" : <Bar share={job.progress} label={`${percent(job.progress, 0)} done`} />}</td>
      <td class={job.steps_per_s ? "n" : "n blank"} data-name="">{job.steps_per_s ? `${digits(job.steps_per_s, 3)} steps/s` : "–"}</td>
      <td class={job.ended || job.eta_s === null ? "n blank" : "n"} data-name="left">{job.ended ? "–" : span(job.eta_s === null ? null : Math.round(job.eta_s))}</td>
      <td class="n" data-name="goodput">{percent(job.goodput)}</td>
      <td class="n" data-name="workers">
        {job.ended ? job.world_size : `${job.running_workers}/${job.wanted_workers}`}
      </td>
      <td class={open || job.incidents.length ? "n" : "n blank"} data-name="incidents">{open ? <b><Mark tone={isStalled(job) ? "bad" : "warn"} /> {open} open</b> : job.incidents.length || "–"}</td>
      <td class="n dim" data-name=""><Time ns={job.submitted_at_ns} /></td>
    </tr>
  );
}

function Nodes({ nodes, error }: { nodes: NodeView[] | undefined; error: Parameters<typeof Trouble>[0]["error"] }) {
  const [rows, more] = useSome(nodes ?? [], 50);
  if (!nodes) return <Trouble error={error} />;
  const slots = nodes.reduce((sum, node) => sum + node.max_workers, 0);
  const taken = nodes.reduce((sum, node) => sum + node.workers, 0);
  return (
    <Section id="nodes" title={plural(nodes.length, "node")} aside={<span>{count(taken)} of {count(slots)} places taken</span>}>
      {!nodes.length ? (
        <Nothing>No agent has joined. <code>loom agent</code> on a host adds one.</Nothing>
      ) : (
        <div class="scroll">
          <table class="stack">
            <thead><tr><th>State</th><th>Node</th><th>Workers</th><th>Devices</th><th class="n">Last heartbeat</th><th><span class="only-read">Actions</span></th></tr></thead>
            <tbody>
              {rows.map((node) => (
                <tr key={node.id}>
                  <td><State state={node.drained ? "drained" : node.state} /></td>
                  <td class="name">
                    {node.id}
                    <span class="sub">{node.drained || (node.state === "ready" ? (node.hostname === node.id ? "" : node.hostname) : node.reason)}</span>
                    {node.leaving.map((one) => <span class="sub" key={one.job}>{one.job}: {one.note}</span>)}
                  </td>
                  <td data-name="workers">
                    {node.workers}/{node.max_workers}{" "}
                    <Bar share={node.max_workers ? node.workers / node.max_workers : 0} label={`${node.workers} of ${node.max_workers} places taken`} />
                  </td>
                  <td class={node.devices.length ? "" : "blank"} data-name="devices">{devices(node)}</td>
                  <td class="n" data-name="last heartbeat">{node.seen_s === null ? "–" : node.seen_s < 2 ? "now" : `${span(Math.round(node.seen_s))} ago`}</td>
                  <td><NodeActions node={node} /></td>
                </tr>
              ))}
            </tbody>
          </table>
          {more}
        </div>
      )}
    </Section>
  );
}

function devices(node: NodeView): string {
  const kinds = new Map<string, number>();
  for (const device of node.devices) kinds.set(device.name || device.kind, (kinds.get(device.name || device.kind) ?? 0) + 1);
  return [...kinds].map(([name, n]) => `${n} × ${name}`).join(", ") || "–";
}

function Recent({ incidents }: { incidents: IncidentView[] }) {
  const newest = [...incidents].reverse();
  const [rows, more] = useSome(newest, 8);
  if (!newest.length) return null;
  return (
    <Section id="incidents" title="Past incidents">
      <table class="stack">
        <thead><tr><th>When</th><th>What</th><th>Job</th><th class="n">Recovered in</th></tr></thead>
        <tbody>
          {rows.map((one) => (
            <tr key={one.id}>
              <td><Time ns={one.timeline.detected_ns} /></td>
              <td class="wide"><a href={link("incident", one.id)}>{one.kind}</a><span class="sub">{one.verdict}</span></td>
              <td class="name" data-name=""><a href={link("job", one.job)}>{one.job}</a></td>
              <td class="n" data-name={failed(one) ? "" : "recovered in"}>{failed(one) ? <State state="job failed" tone="bad" /> : span(one.recovery_s)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {more}
    </Section>
  );
}
