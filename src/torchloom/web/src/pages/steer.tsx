// Steering: settings with their types and bounds, a difference before anything is applied, the phases of the change,
// the history, and the way back.
import { useEffect, useMemo, useState } from "preact/hooks";
import type { ChangePlanView, CheckpointList, ConfigView, HistoryView, JobSummary, OperationView, SettingView } from "../api";
import { count, plural, value } from "../format";
import { Cell, ofJob, useCell, useQuery } from "../live";
import { ask, Refused } from "../net";
import { useMayAct } from "../parts/actions";
import { Ask, Nothing, Section, Time, Trouble, type Question } from "../parts/bits";
import { Mark, State } from "../parts/mark";
import { Checkpoints, JobHead, jobPath, Missing, Operations } from "./job";

export function SteerPage({ id }: { id: string }) {
  const mine = ofJob(id);
  const summary = useQuery<JobSummary>(`${jobPath(id)}/summary`, { every: 1000, on: mine });
  const config = useQuery<ConfigView>(`${jobPath(id)}/config`, { every: 3000, on: mine });
  const history = useQuery<HistoryView[]>(`${jobPath(id)}/config/history`, { on: mine });
  const operations = useQuery<OperationView[]>(`${jobPath(id)}/operations`, { on: mine });
  const checkpoints = useQuery<CheckpointList>(`${jobPath(id)}/checkpoints`, { every: 15000, on: (e) => mine(e) && e.kind.includes("checkpoint") });
  const [followed, setFollowed] = useState("");
  const job = summary.data;
  if (!job) return summary.error ? <Missing id={id} error={summary.error.message} /> : <p class="dim">Reading…</p>;
  const refresh = () => {
    summary.refresh();
    config.refresh();
    history.refresh();
    operations.refresh();
  };
  const current = operations.data?.find((one) => one.id === followed) ?? operations.data?.find((one) => !one.ended);
  return (
    <>
      <JobHead job={job} part="steer" refresh={refresh} />
      {current && <Progress operation={current} world={job.world_size} />}
      <Settings job={job} config={config.data} done={(operation) => (setFollowed(operation), refresh())} />
      <Changes job={job} history={history.data ?? []} done={(operation) => (setFollowed(operation), refresh())} />
      <Checkpoints job={job} list={checkpoints.data} refresh={checkpoints.refresh} />
      <Operations operations={operations.data ?? []} />
    </>
  );
}

const PHASES = ["waiting", "preparing", "arming", "confirmed", "applied"];

/** One transaction while it is in progress, and how it ended. */
function Progress({ operation, world }: { operation: OperationView; world: number }) {
  const told = world - operation.unheard.length;
  const at = PHASES.indexOf(operation.state);
  return (
    <section aria-label="The change in progress" aria-live="polite">
      <div class={`verdict ${operation.state === "applied" ? "over" : operation.ended ? "" : "note"}`}>
        <p><b>{operation.kind}</b> {Object.entries(operation.values).map(([k, v]) => `${k} = ${value(v)}`).join(", ")}</p>
        <ol class="steps">
          {(at >= 0 ? PHASES : [operation.state]).map((phase, n) => (
            <li key={phase} class={phase === operation.state ? "now" : ""}>
              <Mark tone={n < at || operation.state === "applied" ? "done" : phase === operation.state ? (operation.state === "diverged" ? "bad" : "move") : "wait"} />
              {phase}
            </li>
          ))}
        </ol>
        <p>{operation.reason}</p>
        {operation.ended && operation.state === "applied" && (
          <p data-testid="confirmed">
            {told === world ? `All ${plural(world, "rank")} have confirmed` : `${told} of ${plural(world, "rank")} have reported; missing: ${operation.unheard.slice(0, 16).join(", ")}`}
            {operation.training_step !== null ? `, from training step ${count(operation.training_step)}` : operation.at_step !== null ? `, from step ${count(operation.at_step)}` : ""}.
          </p>
        )}
        {Object.entries(operation.trouble).map(([rank, text]) => <details key={rank}><summary>rank {rank}</summary><pre tabIndex={0}>{text}</pre></details>)}
      </div>
    </section>
  );
}

/** What was typed and not applied yet, by job: a look at the logs must not lose it. */
const drafts = new Map<string, Cell<Record<string, string>>>();

function draftOf(job: string): Cell<Record<string, string>> {
  const known = drafts.get(job) ?? new Cell<Record<string, string>>({});
  drafts.set(job, known);
  return known;
}

function Settings({ job, config, done }: { job: JobSummary; config?: ConfigView; done: (operation: string) => void }) {
  const draft = draftOf(job.id);
  const edits = useCell(draft);
  const [why, setWhy] = useState("");
  const [atStep, setAtStep] = useState("");
  const [mode, setMode] = useState<"hold" | "scale">("hold");
  const [plan, setPlan] = useState<ChangePlanView | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  const act = useMayAct() && !job.ended;
  const edited = Object.entries(edits).filter(([, text]) => text.trim());
  const body = { values: Object.fromEntries(edited.map(([name, text]) => [name, text.trim()])), why, mode, ...(atStep ? { at_step: Number(atStep) } : {}) };
  const preview = async () => {
    setError(null);
    try {
      setPlan(await ask<ChangePlanView>("PATCH", `${jobPath(job.id)}/config`, { ...body, dry_run: true }));
    } catch (failed) {
      setError(failed as Refused);
    }
  };
  if (!config) return <Section id="settings" title="Settings"><Nothing>Reading…</Nothing></Section>;
  return (
    <Section id="settings" title="Settings" aside={<span>{config.version ? `version ${config.version} in force` : "as the script set them"}</span>}>
      {!config.settings.length ? (
        <Nothing>{config.known ? "This job has nothing that can be set." : "The workers have not reported their settings yet."}</Nothing>
      ) : (
        <form onSubmit={(event) => (event.preventDefault(), void preview())}>
          <div class="scroll">
            <table class="stack">
              <thead><tr><th>Setting</th><th>Value now</th>{act && <th>New value</th>}<th>Allowed</th></tr></thead>
              <tbody>
                {config.settings.flatMap((setting) => rows(setting).map((row) => (
                  <tr key={row.address} class="setting">
                    <td class="wide"><span class="mono">{row.address}</span>{row.first && setting.description && <span class="sub">{setting.description}</span>}</td>
                    <td class="mono" data-name="now">{value(row.value)}{row.ruled && <span class="sub">{row.ruled}</span>}</td>
                    {act && <td><input aria-label={`New value of ${row.address}`} value={edits[row.address] ?? ""} placeholder="unchanged" onInput={(e) => ((draft.value = { ...draft.value, [row.address]: e.currentTarget.value }), setPlan(null))} /></td>}
                    <td class={row.first && setting.allowed ? "dim" : "dim blank"} data-name="allowed">{row.first ? setting.allowed : ""}</td>
                  </tr>
                )))}
              </tbody>
            </table>
          </div>
          {act && (
            <div class="logbar">
              <select aria-label="How it is set" value={mode} onChange={(e) => (setMode(e.currentTarget.value as "hold" | "scale"), setPlan(null))}>
                <option value="hold">hold this value</option>
                <option value="scale">multiply the script's own by this</option>
              </select>
              <input type="number" aria-label="From training step" placeholder="from step (now)" value={atStep} onInput={(e) => (setAtStep(e.currentTarget.value), setPlan(null))} />
              <input class="grow" aria-label="Why" placeholder="why, for the history" value={why} onInput={(e) => setWhy(e.currentTarget.value)} />
              <button type="submit" disabled={!edited.length}>Show the difference</button>
            </div>
          )}
          <Trouble error={error} />
          {plan && <Plan plan={plan} world={job.world_size} apply={async () => {
            setError(null);
            try {
              const made = await ask<ChangePlanView>("PATCH", `${jobPath(job.id)}/config`, body);
              draft.value = {};
              setWhy("");
              setPlan(null);
              done(made.operation);
            } catch (failed) {
              setError(failed as Refused);
            }
          }} />}
        </form>
      )}
    </Section>
  );
}

interface Row {
  address: string;
  value: unknown;
  ruled: string;
  first: boolean;
}

function rows(setting: SettingView): Row[] {
  if (!setting.places.length) return [{ address: setting.name, value: null, ruled: "", first: true }];
  return setting.places.map((place, at) => ({
    address: setting.places.length === 1 ? setting.name : place.address || setting.name,
    value: place.value,
    ruled: place.mode ? `${place.mode === "scale" ? "scaled" : "held"} by version ${place.version}; the script's own: ${value(place.own)}` : "",
    first: at === 0,
  }));
}

function Plan({ plan, world, apply }: { plan: ChangePlanView; world: number; apply: () => Promise<void> }) {
  const [busy, setBusy] = useState(false);
  return (
    <div class="verdict note">
      <ul class="diff plain">
        {plan.differences.map((one) => (
          <li key={one.address}>{one.address}: <del>{value(one.before)}</del> → <ins>{value(one.after)}</ins></li>
        ))}
      </ul>
      {plan.notes.map((note) => <p key={note}>{note}</p>)}
      <div class="foot">
        <button type="button" class="primary" disabled={busy} onClick={async () => (setBusy(true), await apply(), setBusy(false))}>
          {busy ? "Asking…" : `Apply on ${plural(world, "rank")}`}
        </button>
        <span class="dim">on all ranks at {plan.at_step ? `step ${count(plan.at_step)}` : "one step"}, or on none</span>
      </div>
    </div>
  );
}

function Changes({ job, history, done }: { job: JobSummary; history: HistoryView[]; done: (operation: string) => void }) {
  const [question, setQuestion] = useState<Question | null>(null);
  const act = useMayAct() && !job.ended;
  const newest = useMemo(() => [...history].reverse(), [history]);
  const back = (version: number): Question => ({
    title: `Back to ${version ? `version ${version}` : "the script's own values"}`,
    says: <RevertPlan job={job.id} version={version} />,
    verb: "Revert",
    act: async () => done((await ask<ChangePlanView>("POST", `${jobPath(job.id)}/config/revert`, { version, why: "reverted on the page" })).operation),
  });
  if (!history.length) return null;
  return (
    <Section id="changes" title="Changes" aside={act && job.config_version > 0 ? <button type="button" onClick={() => setQuestion(back(0))}>Back to the script's own</button> : undefined}>
      <div class="scroll">
        <table class="stack">
          <thead><tr><th class="n">Version</th><th>State</th><th>What</th><th class="n">From step</th><th>By</th><th>When</th><th><span class="only-read">Actions</span></th></tr></thead>
          <tbody>
            {newest.map((one) => (
              <tr key={`${one.version}.${one.operation}`}>
                <td class="n" data-name="version">{one.version || "–"}</td>
                <td><State state={one.state} />{one.in_force && <small> in force</small>}</td>
                <td class="wide mono">
                  {one.changed.length ? one.changed.map((c) => <div key={c.address}>{c.address}: {value(c.before)} → {value(c.after)}</div>) : Object.entries(one.values).map(([k, v]) => `${k} = ${value(v)}`).join(", ")}
                  {one.why && <span class="sub">“{one.why}”</span>}
                  {one.state !== "applied" && <span class="sub">{one.reason}</span>}
                </td>
                <td class={one.step === null ? "n blank" : "n"} data-name="from step">{count(one.step)}</td>
                <td data-name="by">{one.by}</td>
                <td><Time ns={one.at_ns} /></td>
                <td>{act && one.state === "applied" && one.version !== job.config_version && <button type="button" class="quiet" onClick={() => setQuestion(back(one.version))}>back to this</button>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {question && <Ask question={question} close={() => setQuestion(null)} />}
    </Section>
  );
}

function RevertPlan({ job, version }: { job: string; version: number }) {
  const [plan, setPlan] = useState<ChangePlanView | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  useEffect(() => {
    ask<ChangePlanView>("POST", `${jobPath(job)}/config/revert`, { version, dry_run: true }).then(setPlan, setError);
  }, [job, version]);
  if (error) return <Trouble error={error} />;
  if (!plan) return <p class="dim">Reading…</p>;
  return (
    <>
      <p>On all ranks at one step, or on none:</p>
      <ul class="diff plain">{plan.differences.map((one) => <li key={one.address}>{one.address}: <del>{value(one.before)}</del> → <ins>{value(one.after)}</ins></li>)}</ul>
    </>
  );
}

