// One job, top to bottom in the order of questions: what is wrong, how far, what happened when, how it goes, who is
// slow, which replica is where.
import { useMemo, useState } from "preact/hooks";
import type { CheckpointList, DeviceMap, HistoryView, IncidentView, JobSummary, OperationView, RanksNow } from "../api";
import { bytes, count, digits, percent, plural, span, value } from "../format";
import { ofJob, useQuery } from "../live";
import { JobActions, useMayAct } from "../parts/actions";
import { Ago, Ask, Bar, Copy, Fact, Facts, Nothing, Section, Time, Trouble, useSome, type Question } from "../parts/bits";
import { Curves } from "../parts/curves";
import { DeviceActions, DeviceRisk, DeviceState } from "../parts/devices";
import { Ranks } from "../parts/ranks";
import { failed, JobState, Mark, State } from "../parts/mark";
import { Timeline, type Happened } from "../parts/timeline";
import { post } from "../net";
import { go, link } from "../session";

export const jobPath = (id: string) => `/jobs/${encodeURIComponent(id)}`;

export function JobHead({ job, part, refresh }: { job: JobSummary; part: "" | "steer" | "logs"; refresh: () => void }) {
  return (
    <>
      <div class="head">
        <h1>{job.id}</h1>
        <JobState job={job} stalled={job.open_incidents.length > 0 && job.steps_per_s === 0} />
        <JobActions job={job} refresh={refresh} />
      </div>
      <p class="reason">{job.reason}</p>
      <nav class="tabs" aria-label="Parts of this job">
        {(["", "steer", "logs"] as const).map((one) => (
          <a key={one} href={link("job", job.id, ...(one ? [one] : []))} aria-current={one === part ? "page" : undefined}>
            {one === "" ? "Overview" : one === "steer" ? "Steer" : "Logs"}
          </a>
        ))}
      </nav>
    </>
  );
}

const RANGES: [number, string][] = [[300, "5 min"], [1800, "30 min"], [21600, "6 h"], [0, "all"]];

export function JobPage({ id, query }: { id: string; query: URLSearchParams }) {
  const mine = ofJob(id);
  const summary = useQuery<JobSummary>(`${jobPath(id)}/summary`, { every: 1000, on: mine });
  const incidents = useQuery<IncidentView[]>(`/incidents?job=${encodeURIComponent(id)}`, { on: (e) => mine(e) || e.incidents.some((one) => one.job === id) });
  const history = useQuery<HistoryView[]>(`${jobPath(id)}/config/history`, { on: (e) => mine(e) && e.topics.includes("config") });
  const operations = useQuery<OperationView[]>(`${jobPath(id)}/operations`, { on: mine });
  const checkpoints = useQuery<CheckpointList>(`${jobPath(id)}/checkpoints`, { every: 15000, on: (e) => mine(e) && e.kind.includes("checkpoint") });
  const wide = (summary.data?.world_size ?? 0) > 1000;
  const ended = summary.data?.ended ?? false;
  const ranks = useQuery<RanksNow>(ended ? null : `${jobPath(id)}/ranks`, { every: wide ? 3000 : 1000, on: mine });
  const lastS = query.has("last") ? Number(query.get("last")) || 0 : null;
  // In the address, so that a link shows the same to somebody else.
  const setLastS = (seconds: number) => go(`${link("job", id)}?last=${seconds}`, true);
  const happened = useMemo(() => gather(incidents.data ?? [], history.data ?? [], checkpoints.data), [incidents.data, history.data, checkpoints.data]);
  const job = summary.data;
  if (!job) return summary.error ? <Missing id={id} error={summary.error.message} /> : <p class="dim">Reading…</p>;
  const range = lastS ?? (job.elapsed_s > 1800 && !job.ended ? 1800 : 0);
  const every = job.ended ? 0 : wide ? 5000 : 2000;
  return (
    <>
      <JobHead job={job} part="" refresh={summary.refresh} />
      <Trouble error={summary.error} />
      <Wrong job={job} incidents={incidents.data ?? []} />
      <HowFar job={job} />
      <div class="range">
        <div class="choice" role="group" aria-label="Time range">
          {RANGES.map(([seconds, word]) => <button key={word} type="button" aria-pressed={seconds === range} onClick={() => setLastS(seconds)}>{word}</button>)}
        </div>
      </div>
      <Timeline job={id} lastS={range} happened={happened} every={every} />
      <Curves job={id} lastS={range} happened={happened} every={every} />
      <Ranks job={id} now={ranks.data} />
      <Replicas job={job} />
      {!job.ended && <Devices job={id} generation={job.generation} />}
      <Checkpoints job={job} list={checkpoints.data} refresh={checkpoints.refresh} />
      <Operations operations={operations.data ?? []} />
      <Incidents incidents={incidents.data ?? []} />
      <About job={job} />
    </>
  );
}

export function Missing({ id, error }: { id: string; error: string }) {
  return (
    <>
      <h1>{id}</h1>
      <p class="trouble" role="alert">{error}</p>
      <p><a href="#/">All jobs</a></p>
    </>
  );
}

function gather(incidents: IncidentView[], history: HistoryView[], checkpoints?: CheckpointList): Happened[] {
  const found: Happened[] = [];
  for (const one of incidents) {
    const line = one.timeline;
    const from = line.fault_ns || line.first_sign_ns || line.detected_ns;
    const last = line.first_step_ns || (one.open ? Date.now() * 1e6 : Math.max(line.decided_ns, line.detected_ns));
    found.push({ at_s: from / 1e9, until_s: last / 1e9, kind: "incident", text: `${one.kind}: ${one.verdict}`, href: link("incident", one.id) });
    if (line.spawned_ns) found.push({ at_s: line.spawned_ns / 1e9, kind: "restart", text: `restarted after ${one.id}` });
  }
  for (const one of history) {
    if (one.state === "applied") found.push({ at_s: one.at_ns / 1e9, kind: "change", text: `version ${one.version}: ${Object.entries(one.values).map(([k, v]) => `${k} = ${value(v)}`).join(", ")}` });
  }
  for (const one of checkpoints?.checkpoints ?? []) found.push({ at_s: one.created_ns / 1e9, kind: "checkpoint", text: `checkpoint of step ${one.step}` });
  return found.sort((a, b) => a.at_s - b.at_s);
}

function Wrong({ job, incidents }: { job: JobSummary; incidents: IncidentView[] }) {
  const open = incidents.filter((one) => one.open);
  const newest = incidents[incidents.length - 1];
  if (open.length) return <>{open.map((one) => <Verdict key={one.id} incident={one} note={job.state === "running" && (job.steps_per_s > 0 || job.paused)} />)}</>;
  if (job.state === "failed") {
    return (
      <article class="verdict">
        <p class="says">{newest ? newest.verdict : job.reason}</p>
        {newest && <p class="foot"><a href={link("incident", newest.id)}>{newest.id}: what happened</a><Copy text={newest.verdict} what="verdict" /></p>}
      </article>
    );
  }
  return (
    <p class="calm quietly" role="status">
      <Mark tone={job.paused ? "held" : job.ended ? "done" : job.state === "running" ? "ok" : "move"} />
      <span>
        {job.paused ? "Paused: all ranks stand at one step boundary" : job.ended ? `The job has ${job.state === "completed" ? "completed" : "been stopped"}` : job.state === "running" ? "Nothing is wrong" : job.state}
        {newest && <span class="dim"> · last incident <a href={link("incident", newest.id)}>{newest.kind}</a> <Ago ns={newest.timeline.detected_ns} />{newest.recovery_s !== null ? `, recovered in ${span(newest.recovery_s)}` : ""}</span>}
      </span>
    </p>
  );
}

function Verdict({ incident, note }: { incident: IncidentView; note: boolean }) {
  return (
    <div class={note ? "verdict note" : "verdict"} role="status">
      <p class="says">{incident.verdict}</p>
      {incident.fault && <p>{incident.fault.sentence}. {incident.fault.advice}</p>}
      {incident.decision && <p>{incident.decision}</p>}
      <p class="foot">
        <a href={link("incident", incident.id)}>{incident.id}: evidence and timeline</a>
        <span class="dim">{incident.kind} · <Ago ns={incident.timeline.detected_ns} />{incident.confidence !== null && ` · confidence ${percent(incident.confidence, 0)}`}</span>
        <Copy text={incident.verdict} what="verdict" />
      </p>
    </div>
  );
}

function HowFar({ job }: { job: JobSummary }) {
  return (
    <section aria-label="How far">
      <Facts>
        <Fact name={job.step_is_training ? "Training step" : "Step of this generation"} note={job.progress !== null && <Bar share={job.progress} label={`${percent(job.progress, 0)} done`} />}>
          <span data-testid="step">{count(job.step)}</span>
          {job.total_steps !== null && <span class="dim"> / {count(job.total_steps)}</span>}
        </Fact>
        <Fact name="Pace" note={job.samples_per_s !== null ? `${digits(job.samples_per_s, 3)} samples/s` : undefined}>{job.steps_per_s ? `${digits(job.steps_per_s, 3)} steps/s` : "–"}</Fact>
        <Fact name={job.ended ? "Took" : "Left"} note={job.ended ? undefined : `running for ${span(Math.round(job.elapsed_s))}`}>{job.ended ? span(Math.round(job.elapsed_s)) : span(job.eta_s === null ? null : Math.round(job.eta_s))}</Fact>
        <Fact name="Goodput" note="time not lost to faults">{percent(job.goodput)}</Fact>
        {job.last_loss !== null && <Fact name="Loss">{value(job.last_loss)}</Fact>}
        <Fact name="Workers" note={job.standby ? `${job.spares.length} of ${job.standby} spare places` : undefined}>
          {job.running_workers}<span class="dim"> / {job.wanted_workers}</span>
        </Fact>
        <Fact name="Restarts" note={`of ${job.max_restarts} · generation ${job.generation}`}>{job.restarts}</Fact>
        <Fact name="Checkpoint" note={job.checkpoint_interval ? `every ${plural(job.checkpoint_interval, "step")}` : job.checkpoint_step === null ? "none reported" : undefined}>{job.checkpoint_step === null ? "–" : `step ${count(job.checkpoint_step)}`}</Fact>
        {job.config_version > 0 && <Fact name="Config" note={<a href={link("job", job.id, "steer")}>what was changed</a>}>version {job.config_version}</Fact>}
      </Facts>
    </section>
  );
}

function Replicas({ job }: { job: JobSummary }) {
  const [rows, more] = useSome(job.replicas, 32);
  if (job.replicas.length < 2) return null;
  return (
    <Section id="replicas" title={plural(job.replicas.length, "replica")}>
      <div class="scroll">
        <table>
          <thead><tr><th>State</th><th>Replica</th><th class="n">Workers</th><th class="n">Step</th><th>Phase</th><th class="n">Loss</th></tr></thead>
          <tbody>
            {rows.map((one) => (
              <tr key={one.id}>
                <td><State state={one.state} /></td>
                <td>{one.id}</td>
                <td class="n">{one.running_workers}/{one.workers}</td>
                <td class="n">{count(one.step)}</td>
                <td>{one.phase}</td>
                <td class="n">{value(one.last_loss)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {more}
      </div>
    </Section>
  );
}

function Devices({ job, generation }: { job: string; generation: number }) {
  const map = useQuery<DeviceMap>("/devices", { on: (e) => e.topics.includes("worker") || e.topics.includes("device") || e.topics.includes("job") });
  const [chosen, setChosen] = useState("");
  const choose = (name: string, word: string) => <button type="button" class="quiet" aria-pressed={chosen === name} onClick={() => setChosen(chosen === name ? "" : name)}>{word}</button>;
  const brief = (replica: string) => replica.split("/").pop() ?? "";
  const workers = useMemo(() => (map.data?.workers ?? []).filter((one) => one.job === job).sort((a, b) => a.rank - b.rank), [map.data, job, generation]);
  const devices = useMemo(() => (map.data?.devices ?? []).filter((one) => one.workers.some((w) => w.job === job)), [map.data, job]);
  const [someWorkers, moreWorkers] = useSome(workers, 40);
  const [someDevices, moreDevices] = useSome(devices, 40);
  if (!workers.length) return null;
  return (
    <Section id="devices" title="Devices" aside={<span>choose a worker, replica or device to see what belongs to it</span>}>
      <div class="columns">
        <div class="scroll">
          <table aria-label="Workers and their devices">
            <thead><tr><th>Worker</th><th>Replica</th><th>Node</th><th>Devices</th></tr></thead>
            <tbody>
              {someWorkers.map((one) => (
                <tr key={one.worker} class={chosen && (one.worker === chosen || one.replica === chosen || one.devices.includes(chosen)) ? "chosen" : ""}>
                  <td>{choose(one.worker, `rank ${one.rank}`)}</td>
                  <td>{choose(one.replica, brief(one.replica))}</td>
                  <td>{one.node}</td>
                  <td class="wide mono">{one.devices.join(", ") || "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {moreWorkers}
        </div>
        <div class="scroll">
          <table aria-label="Devices and their workers">
            <thead><tr><th>Device</th><th>State</th><th>Risk</th><th>Node</th><th>Workers</th><th>Replicas</th><th><span class="only-read">Actions</span></th></tr></thead>
            <tbody>
              {someDevices.map((one) => (
                <tr key={one.device} class={chosen && (one.device === chosen || one.workers.some((w) => w.worker === chosen || w.replica === chosen)) ? "chosen" : ""}>
                  <td class="mono">{choose(one.device, one.device)}<span class="sub">{one.name || one.kind}</span></td>
                  <td><DeviceState device={one} /></td>
                  <td><DeviceRisk device={one} /></td>
                  <td>{one.node}</td>
                  <td>{one.workers.filter((w) => w.job === job).map((w) => `rank ${w.rank}`).join(", ")}</td>
                  <td>{[...new Set(one.workers.filter((w) => w.job === job).map((w) => w.replica))].map((replica) => <span key={replica}>{choose(replica, brief(replica))} </span>)}</td>
                  <td class="tight"><DeviceActions device={one} /></td>
                </tr>
              ))}
            </tbody>
          </table>
          {moreDevices}
        </div>
      </div>
    </Section>
  );
}

export function Checkpoints({ job, list, refresh }: { job: JobSummary; list?: CheckpointList; refresh: () => void }) {
  const [question, setQuestion] = useState<Question | null>(null);
  const act = useMayAct();
  const [rows, more] = useSome(list?.checkpoints ?? [], 8);
  if (!list || (!list.checkpoints.length && !list.store)) return null;
  const restore = (step: number): Question => ({
    title: `Restore step ${step}`,
    says: `All ranks go back to the state of step ${count(step)}. Steps after it are made again; newer checkpoints lie on a branch that is left. Settings stay as they are now.`,
    verb: "Restore",
    destroys: true,
    act: async () => {
      await post(`${jobPath(job.id)}/restore`, { step, config: job.config_version ? "keep" : null });
      refresh();
    },
  });
  return (
    <Section id="checkpoints" title="Checkpoints" aside={<span class="mono">{list.store}</span>}>
      {!list.checkpoints.length ? (
        <Nothing>None is whole in the store yet.</Nothing>
      ) : (
        <div class="scroll">
          <table class="stack">
            <thead><tr><th class="n">Step</th><th>State</th><th>Made</th><th class="n">Size</th><th class="n">Ranks</th><th>Name</th><th><span class="only-read">Actions</span></th></tr></thead>
            <tbody>
              {rows.map((one) => (
                <tr key={one.name + one.where}>
                  <td class="n" data-name="step">{count(one.step)}</td>
                  <td>{one.whole ? <State state={one.newest ? "newest" : one.resumable ? "whole" : "left branch"} tone={one.newest ? "ok" : one.resumable ? "done" : "off"} /> : <State state={`not whole: ${one.why}`} tone="bad" />}{one.pinned && <small> pinned</small>}</td>
                  <td><Time ns={one.created_ns} /></td>
                  <td class="n" data-name="">{bytes(one.size)}</td>
                  <td class="n" data-name="ranks">{one.world}</td>
                  <td class="mono">{one.name}</td>
                  <td>{act && one.whole && <button type="button" class="quiet" onClick={() => setQuestion(restore(one.step))}>restore</button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {more}
        </div>
      )}
      {question && <Ask question={question} close={() => setQuestion(null)} />}
    </Section>
  );
}

export function Operations({ operations }: { operations: OperationView[] }) {
  const [rows, more] = useSome([...operations].reverse(), 8);
  if (!operations.length) return null;
  return (
    <Section id="operations" title="Operations">
      <div class="scroll">
        <table class="stack">
          <thead><tr><th>State</th><th>What</th><th>Outcome</th><th>By</th><th>Asked</th></tr></thead>
          <tbody>
            {rows.map((one) => (
              <tr key={one.id}>
                <td><State state={one.state} /></td>
                <td class="wide">{one.kind}{Object.keys(one.values).length > 0 && <span class="sub mono">{Object.entries(one.values).map(([k, v]) => `${k} = ${value(v)}`).join(", ")}</span>}</td>
                <td class="wide">{one.reason}{one.why && <span class="sub">“{one.why}”</span>}</td>
                <td data-name="by">{one.by}</td>
                <td><Time ns={one.asked_at_ns} /></td>
              </tr>
            ))}
          </tbody>
        </table>
        {more}
      </div>
    </Section>
  );
}

function Incidents({ incidents }: { incidents: IncidentView[] }) {
  const [rows, more] = useSome([...incidents].reverse(), 8);
  if (!incidents.length) return null;
  return (
    <Section id="incidents" title={plural(incidents.length, "incident")}>
      <table class="stack">
        <thead><tr><th>State</th><th>When</th><th>What</th><th class="n">Recovered in</th><th class="n">Lost steps</th></tr></thead>
        <tbody>
          {rows.map((one) => (
            <tr key={one.id}>
              <td><State state={one.open ? "open" : failed(one) ? "job failed" : "over"} tone={one.open || failed(one) ? "bad" : "done"} /></td>
              <td><Time ns={one.timeline.detected_ns} /></td>
              <td class="wide"><a href={link("incident", one.id)}>{one.kind}</a><span class="sub">{one.verdict}</span></td>
              <td class="n" data-name="recovered in">{span(one.recovery_s)}</td>
              <td class="n" data-name="lost steps">{count(one.lost_steps)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {more}
    </Section>
  );
}

function About({ job }: { job: JobSummary }) {
  return (
    <Section id="about" title="About">
      <dl class="facts small">
        <Fact name="Program"><code>{job.program}</code></Fact>
        <Fact name="Submitted">{job.by}, <Time ns={job.submitted_at_ns} /></Fact>
        {job.started_at_ns > 0 && <Fact name="Started"><Time ns={job.started_at_ns} /></Fact>}
        {job.ended_at_ns > 0 && <Fact name="Ended"><Time ns={job.ended_at_ns} /></Fact>}
        {Object.entries(job.labels).map(([name, text]) => <Fact key={name} name={name}>{text}</Fact>)}
      </dl>
    </Section>
  );
}
