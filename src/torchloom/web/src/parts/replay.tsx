// Replay: the recorded events of an incident, applied to the core again by the service, one step at a time.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ReplayStepView, ReplayView } from "../api";
import { span } from "../format";
import { get, Refused } from "../net";
import { Nothing, Section, Trouble } from "./bits";
import { Mark } from "./mark";

export function Replay({ incident }: { incident: string }) {
  const [found, setFound] = useState<ReplayView | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  const [at, setAt] = useState(0);
  const read = async () => {
    setBusy(true);
    setError(null);
    try {
      const made = await get<ReplayView>(`/incidents/${encodeURIComponent(incident)}/replay`);
      setFound(made);
      setAt(Math.max(0, made.steps.findIndex((step) => opens(step, incident))));
    } catch (failed) {
      setError(failed instanceof Refused ? failed : new Refused(0, String(failed)));
    }
    setBusy(false);
  };
  const steps = found?.steps ?? [];
  const move = (by: number) => setAt(Math.max(0, Math.min(steps.length - 1, at + by)));
  return (
    <Section
      id="replay"
      title="Replay"
      aside={
        steps.length ? (
          <>
            <span>step {at + 1} of {steps.length}</span>
            <button type="button" disabled={at <= 0} onClick={() => move(-1)}>back</button>
            <button type="button" disabled={at >= steps.length - 1} onClick={() => move(1)}>next</button>
          </>
        ) : (
          !found && <button type="button" disabled={busy} onClick={() => void read()}>{busy ? "Replaying…" : "Step through the decisions"}</button>
        )
      }
    >
      <Trouble error={error} />
      {!found ? (
        <Nothing>Runs the recorded events through the same code again, and shows what each changed, what was decided, and why.</Nothing>
      ) : (
        <>
          <p class="dim">{found.differing > 0 && <Mark tone="warn" />} {found.sentence}</p>
          {steps.length > 0 && (
            <div class="replay">
              <Index steps={steps} at={at} choose={setAt} />
              <Step step={steps[at]!} first={steps[0]!.at_ns} />
            </div>
          )}
        </>
      )}
    </Section>
  );
}

/** Whether the incident was opened by this event. */
const opens = (step: ReplayStepView, incident: string) => step.changes.some((one) => one.what === `incident ${incident}` && !one.before);

/** All events, those with a decision marked. Arrow keys move. */
function Index({ steps, at, choose }: { steps: ReplayStepView[]; at: number; choose: (at: number) => void }) {
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    const [box, row] = [list.current, list.current?.children[at] as HTMLElement | undefined];
    // Not scrollIntoView: that would move the page, too.
    if (box && row) box.scrollTop = row.offsetTop - box.clientHeight / 2;
  }, [at]);
  const key = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(steps.length - 1, at + by));
    choose(next);
    list.current?.querySelectorAll("button")[next]?.focus({ preventScroll: true });
  };
  return (
    <ol class="plain index" ref={list} onKeyDown={key} aria-label="Events, in order">
      {steps.map((step, n) => (
        <li key={step.seq}>
          <button type="button" class="quiet" aria-current={n === at ? "step" : undefined} tabIndex={n === at ? 0 : -1} onClick={() => choose(n)}>
            <span class="dim">+ {span((step.at_ns - steps[0]!.at_ns) / 1e9)}</span> {step.kind}
            {step.decisions.length > 0 && <b title="The core decided something"> ◆ {step.decisions.length}</b>}
          </button>
        </li>
      ))}
    </ol>
  );
}

function Step({ step, first }: { step: ReplayStepView; first: number }) {
  return (
    <div class="step" aria-live="polite">
      <p class="dim">event {step.seq} · + {span((step.at_ns - first) / 1e9)} · {step.kind}</p>
      <p class="says">{step.text}</p>
      {step.changes.length > 0 && (
        <>
          <h3>What it changed</h3>
          <dl>
            {step.changes.map((one) => (
              <div key={one.what}>
                <dt>{one.what}</dt>
                <dd>{one.before && <><del>{one.before}</del> → </>}<ins>{one.after || "–"}</ins></dd>
              </div>
            ))}
          </dl>
        </>
      )}
      <h3>What was decided</h3>
      {step.decisions.length === 0 && <Nothing>Nothing.</Nothing>}
      {step.decisions.map((one) => (
        <p key={one.id} class="decision">
          <b>{one.do}</b> {one.who && `${one.who} `}on {one.node}
          <span class="sub">because {one.reason}</span>
          <span class="sub">{one.recorded === "same" ? <><Mark tone="done" /> recorded so at the time</> : one.recorded === "differs" ? <><Mark tone="warn" /> the record of that time differs</> : ""}</span>
        </p>
      ))}
    </div>
  );
}
