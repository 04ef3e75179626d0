// One incident: what happened, whether it is over, what to do; then the evidence.
import { useMemo, useState } from "preact/hooks";
import type { IncidentDetail, RankEvidenceView, TimelineView } from "../api";
import { count, percent, span, time, value } from "../format";
import { useQuery } from "../live";
import { Ago, Copy, Fact, Facts, Nothing, Section, Time } from "../parts/bits";
import { Matrix } from "../parts/matrix";
import { failed, Mark } from "../parts/mark";
import { link } from "../session";
import { Replay } from "../parts/replay";
import { Missing } from "./job";

export function IncidentPage({ id }: { id: string }) {
  const found = useQuery<IncidentDetail>(`/incidents/${encodeURIComponent(id)}`, { on: (e) => e.incidents.some((one) => one.id === id) });
  const one = found.data;
  if (!one) return found.error ? <Missing id={id} error={found.error.message} /> : <p class="dim">Reading…</p>;
  return (
    <>
      <div class="head">
        <h1>{one.kind}</h1>
        <span class="dim">
          {one.id}{one.job && <> · job <a href={link("job", one.job)}>{one.job}</a> · generation {one.generation}</>}
        </span>
      </div>
      <div class={one.open || failed(one) ? "verdict" : "verdict over"} role="status">
        <p class="says">{one.verdict}</p>
        {one.fault && <p>{one.fault.sentence}. {one.fault.advice}</p>}
        <p class="foot">
          <b><Mark tone={one.open || failed(one) ? "bad" : "done"} /> {one.open ? "Still open" : over(one)}</b>
          <Copy text={report(one)} what="verdict" />
        </p>
        <p>{next(one)}</p>
      </div>
      <section aria-label="In short">
        <Facts>
          <Fact name="Began"><Time ns={one.timeline.fault_ns || one.timeline.first_sign_ns || one.timeline.detected_ns} /> <small><Ago ns={one.timeline.detected_ns} /></small></Fact>
          <Fact name="Recovered in">{one.open && one.recovery_s === null ? "not yet" : span(one.recovery_s)}</Fact>
          <Fact name="Lost steps">{count(one.lost_steps)}</Fact>
          <Culprits incident={one} />
          <Fact name="Confidence" note={one.confidence === null ? "seen, not concluded" : undefined}>{one.confidence === null ? "certain" : percent(one.confidence, 0)}</Fact>
          {one.goodput_before !== null && <Fact name="Goodput" note="before → after">{percent(one.goodput_before)} → {percent(one.goodput_after)}</Fact>}
        </Facts>
      </section>
      <Section id="done" title="What was done and why"><p>{one.decision || "Nothing has been decided yet."}</p>{one.resolution && <p class="dim">{one.resolution}</p>}</Section>
      <Phases line={one.timeline} open={one.open} />
      <Exits incident={one} />
      <Stacks incident={one} />
      <Collectives evidence={one.evidence} culprits={one.culprits} />
      {one.links && <Section id="links" title="Delay matrix" aside={<Time ns={one.links.at_ns} />}><Matrix links={one.links} /></Section>}
      <Evidence incident={one} />
      {one.job && <Replay incident={one.id} />}
    </>
  );
}

const SHOWN = 4;

/** Who is to blame: all ranks that failed alike, each with its log. */
function Culprits({ incident }: { incident: IncidentDetail }) {
  const ranks = incident.culprits;
  if (!ranks.length) return <Fact name="Culprit">nobody is blamed</Fact>;
  const more = ranks.length - SHOWN;
  return (
    <Fact name={ranks.length > 1 ? "Culprits" : "Culprit"}>
      {ranks.slice(0, SHOWN).map((rank, at) => <>{at > 0 && ", "}<a key={rank} href={`${link("job", incident.job, "logs")}?rank=${rank}`}>rank {rank}</a></>)}
      {more > 0 && ` and ${count(more)} more`}
    </Fact>
  );
}

/** What a person should do now. */
function next(one: IncidentDetail): preact.ComponentChildren {
  const log = one.culprit !== null && <> Look at the <a href={`${link("job", one.job, "logs")}?rank=${one.culprit}`}>log of rank {one.culprit}</a>.</>;
  if (failed(one)) return <><b>To do:</b> remove the cause, then <code>loom restart {one.job}</code> continues from the newest checkpoint.{log}</>;
  if (!one.open) return <b>Nothing is left to do.</b>;
  if (!one.job) return <><b>To do:</b> remove the cause, free disk space for instance. The control plane then recovers by itself, and workers train on meanwhile.</>;
  if (one.outcome !== "pending" && one.outcome !== "done") return <><b>To do:</b> torchloom has changed nothing.{log} You can pause, restore or stop the job on <a href={link("job", one.job, "steer")}>its page</a>, or drain the node{one.finding?.node ? ` ${one.finding.node}` : ""}.</>;
  return <><b>Recovery is in progress;</b> nothing to do unless this stays open.{log}</>;
}

function over(one: IncidentDetail): string {
  if (failed(one)) return "The job has failed";
  if (one.recovery_s !== null) return `Over: recovered in ${span(one.recovery_s)}`;
  return one.resolution ? "Over" : "Closed";
}

function report(one: IncidentDetail): string {
  return [`${one.id} (${one.kind})${one.job && ` in job ${one.job}`}`, one.verdict, one.decision, one.open ? "Still open." : `${over(one)}.`].filter(Boolean).join("\n");
}

const STEPS: [keyof TimelineView, string][] = [
  ["fault_ns", "fault"],
  ["first_sign_ns", "first sign"],
  ["detected_ns", "detected"],
  ["decided_ns", "decided"],
  ["stopped_ns", "old workers gone"],
  ["spawned_ns", "new workers started"],
  ["restored_ns", "state restored"],
  ["first_step_ns", "first step again"],
];

function Phases({ line, open }: { line: TimelineView; open: boolean }) {
  const seen = STEPS.filter(([name]) => line[name] > 0).sort((a, b) => line[a[0]] - line[b[0]]);
  const first = seen[0] ? line[seen[0][0]] : 0;
  const last = seen.length ? line[seen[seen.length - 1]![0]] : 0;
  if (!seen.length) return null;
  return (
    <Section id="phases" title="Timeline" aside={open ? <span>began <Ago ns={first} /></span> : <span>{span((last - first) / 1e9)} in all</span>}>
      <div class="phases">
        {seen.map(([name, word], at) => {
          const before = at ? line[seen[at - 1]![0]] : line[name];
          return [
            <time key={`${name}t`} class="dim" title={new Date(line[name] / 1e6).toISOString()}>{time(line[name])}</time>,
            <span key={`${name}w`}>{word}</span>,
            <span key={`${name}d`} class="dim">{at ? `+ ${span((line[name] - before) / 1e9)}` : ""}</span>,
            <span key={`${name}l`} class="line" aria-hidden="true"><span style={{ left: `${((before - first) / Math.max(1, last - first)) * 100}%`, width: `${((line[name] - before) / Math.max(1, last - first)) * 100}%` }} /></span>,
          ];
        })}
      </div>
    </Section>
  );
}

/** What an exit has to do with the fault. A culprit beside the first one is no consequence of it. */
function role(incident: IncidentDetail, one: IncidentDetail["exits"][number]): preact.ComponentChildren {
  if (one.after_stop) return <span class="dim"> · ended by torchloom</span>;
  if (one.rank === incident.culprit) return <span> · first</span>;
  if (incident.culprits.includes(one.rank)) return <span> · to blame as well</span>;
  return one.secondary && <span class="dim"> · followed</span>;
}

function Exits({ incident }: { incident: IncidentDetail }) {
  if (!incident.exits.length) return null;
  const exits = [...incident.exits].sort((a, b) => Number(a.secondary) - Number(b.secondary) || Number(a.after_stop) - Number(b.after_stop) || a.at_ns - b.at_ns);
  return (
    <Section id="exits" title="How workers ended">
      <table class="stack">
        <thead><tr><th>Rank</th><th>How</th><th>At</th><th class="n">Step</th><th>Doing</th></tr></thead>
        <tbody>
          {exits.map((one) => (
            <tr key={one.rank}>
              <td class="tight"><a href={`${link("job", incident.job, "logs")}?rank=${one.rank}`}>rank {one.rank}</a><span class="sub">{one.node}</span></td>
              <td class="wide">
                <b>{one.how}</b>{role(incident, one)}
                {one.exception && <span class="sub">{one.exception}: {one.message}</span>}
                {(one.traceback || one.log_tail.length > 0) && (
                  <details>
                    <summary>{one.traceback ? "traceback and log" : "end of its log"}</summary>
                    {one.traceback && <pre tabIndex={0}>{one.traceback}</pre>}
                    {one.log_tail.length > 0 && <pre tabIndex={0}>{one.log_tail.join("\n")}</pre>}
                  </details>
                )}
              </td>
              <td data-name="at"><Time ns={one.at_ns} /></td>
              <td class="n" data-name="step">{count(one.training_step ?? one.steps)}</td>
              <td class="wide" data-name="">{one.activity}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Section>
  );
}

/** Outliers first: who is blamed, then whose innermost own frame is the rarest. */
function ordered(evidence: RankEvidenceView[], blamed: number[]): RankEvidenceView[] {
  const often = new Map<string, number>();
  for (const one of evidence) often.set(one.location, (often.get(one.location) ?? 0) + 1);
  const place = (one: RankEvidenceView) => (blamed.includes(one.rank) ? -1 : often.get(one.location) ?? 0);
  return [...evidence].sort((a, b) => place(a) - place(b) || a.rank - b.rank);
}

function Stacks({ incident }: { incident: IncidentDetail }) {
  const blamed = incident.finding?.ranks ?? [];
  const all = ordered(incident.evidence.filter((one) => one.stack.length || one.location), blamed);
  const [most, setMost] = useState(8);
  if (!all.length) return null;
  return (
    <Section id="stacks" title="Stacks" aside={<span>innermost frame first; the outlier is on the left</span>}>
      <div class="stacks" tabIndex={0} role="group" aria-label="Stacks of ranks">
        {all.slice(0, most).map((one) => (
          <article key={one.rank} class={blamed.includes(one.rank) ? "blamed" : ""}>
            <h3>rank {one.rank}{blamed.includes(one.rank) && " · blamed"} <small>{one.node} · {one.phase} · step {count(one.steps)}</small></h3>
            <p class="dim">{one.doing}</p>
            {one.gil && <p class="dim">GIL held by {one.gil}</p>}
            <ol>{one.stack.slice(0, 24).map((frame, at) => <li key={at} class={one.location && frame.includes(one.location.split(" at ").pop() ?? "\0") ? "own" : ""}>{frame}</li>)}</ol>
            {!one.stack.length && <p class="mono">{one.location}</p>}
            {one.log_tail.length > 0 && <details><summary>end of its log</summary><pre tabIndex={0}>{one.log_tail.join("\n")}</pre></details>}
          </article>
        ))}
      </div>
      {all.length > most && <button type="button" class="quiet" onClick={() => setMost(all.length)}>show {all.length - most} more</button>}
    </Section>
  );
}

/** `all_reduce #412 (group 0)` by number, so that ranks stand beside each other. */
function Collectives({ evidence, culprits }: { evidence: RankEvidenceView[]; culprits: number[] }) {
  const ranks = ordered(evidence.filter((one) => one.collectives.length), culprits).slice(0, 12);
  const numbers = useMemo(() => {
    const found = new Map<number, Map<number, string>>();
    for (const one of ranks) {
      for (const text of one.collectives) {
        const number = Number(/#(\d+)/.exec(text)?.[1] ?? NaN);
        if (Number.isNaN(number)) continue;
        if (!found.has(number)) found.set(number, new Map());
        found.get(number)!.set(one.rank, text);
      }
    }
    // Where only one rank has reported a number there is nothing to compare.
    const sorted = [...found].sort((a, b) => b[0] - a[0]);
    const shared = sorted.findLastIndex(([, by]) => by.size > 1);
    return sorted.slice(0, Math.min(16, Math.max(4, shared + 2)));
  }, [evidence]);
  if (!numbers.length) return null;
  return (
    <Section id="collectives" title="Last collectives, by number" aside={<span>newest first</span>}>
      <div class="scroll" tabIndex={0} role="group" aria-label="Last collectives by rank">
        <table class="seq">
          <thead><tr><th class="n">#</th>{ranks.map((one) => <th key={one.rank}>rank {one.rank}</th>)}</tr></thead>
          <tbody>
            {numbers.map(([number, by]) => (
              <tr key={number}>
                <td class="n">{number}</td>
                {ranks.map((one) => {
                  const text = by.get(one.rank);
                  const highest = Math.max(...one.collectives.map((t) => Number(/#(\d+)/.exec(t)?.[1] ?? 0)));
                  return <td key={one.rank} class={text ? "" : "gap"} title={text}>{text ? brief(text) : number > highest ? "not entered" : ""}</td>;
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

/** `all_reduce #724 of group default (8.7 kB float32), 2.2 s ago, in progress` → `all_reduce · 8.7 kB · in progress`. */
function brief(text: string): string {
  const op = text.split(" ")[0];
  const size = /\(([\d.]+ \w+)/.exec(text)?.[1];
  const group = /of group (\S+)/.exec(text)?.[1];
  const parts = [op, group === "default" ? "" : group, size, text.split(", ").pop()];
  return parts.filter(Boolean).join(" · ");
}

function Evidence({ incident }: { incident: IncidentDetail }) {
  const finding = incident.finding;
  if (!finding) return null;
  return (
    <Section id="evidence" title="Evidence" aside={<span>{finding.certain ? "certain" : "not certain"}: {finding.certainty}</span>}>
      {finding.facts.length ? (
        <table><tbody>{finding.facts.map((fact, at) => <tr key={at}><td>rank {fact.rank}</td><td class="wide">{fact.says}</td></tr>)}</tbody></table>
      ) : (
        <Nothing>No facts by rank.</Nothing>
      )}
      {finding.waiting.length > 0 && <p class="dim">Held up by it: {finding.waiting.length > 16 ? `${finding.waiting.length} ranks` : `ranks ${finding.waiting.join(", ")}`}</p>}
      {Object.keys(finding.inputs).length > 0 && (
        <details>
          <summary>numbers that were compared</summary>
          <table><tbody>{Object.entries(finding.inputs).map(([name, given]) => <tr key={name}><td class="mono">{name}</td><td class="n">{value(given)}</td></tr>)}</tbody></table>
        </details>
      )}
    </Section>
  );
}
