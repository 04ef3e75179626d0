// States as word, shape and, last, colour.

export type Tone = "ok" | "move" | "wait" | "bad" | "done" | "off" | "held" | "warn";

const SHAPES: Record<Tone, preact.JSX.Element> = {
  ok: <circle cx="6" cy="6" r="4" fill="currentColor" />,
  move: <path d="M6 2a4 4 0 1 1 0 8zM6 2.6a3.4 3.4 0 0 0 0 6.8" fill="currentColor" stroke="currentColor" stroke-width="1.2" fill-rule="evenodd" />,
  wait: <circle cx="6" cy="6" r="3.4" fill="none" stroke="currentColor" stroke-width="1.4" />,
  bad: <path d="M2.5 2.5l7 7m0-7l-7 7" stroke="currentColor" stroke-width="2" stroke-linecap="round" />,
  done: <path d="M2 6.5l3 3 5-7" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" />,
  off: <rect x="2.6" y="2.6" width="6.8" height="6.8" fill="currentColor" />,
  held: <path d="M3 2.2h2v7.6H3zM7 2.2h2v7.6H7z" fill="currentColor" />,
  warn: <path d="M6 1.4L11.2 10.4H.8z" fill="currentColor" />,
};

export function Mark({ tone }: { tone: Tone }) {
  return (
    <svg class={`mark ${tone}`} viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      {SHAPES[tone]}
    </svg>
  );
}

const TONES: Record<string, Tone> = {
  running: "ok", starting: "move", recovering: "move", backoff: "move", stopping: "move", waiting: "wait",
  completed: "done", failed: "bad", stopped: "off", paused: "held",
  // nodes, replicas and workers
  joined: "ok", up: "ok", ready: "ok", assigned: "move", exited: "off", unreachable: "warn", silent: "warn", gone: "bad", left: "off", drained: "held",
  // operations
  applied: "done", "not applied": "off", diverged: "bad", preparing: "move", arming: "move", confirmed: "move",
};

export const toneOf = (state: string): Tone => TONES[state] ?? "wait";

export function State({ state, tone }: { state: string; tone?: Tone }) {
  return (
    <span class="state">
      <Mark tone={tone ?? toneOf(state)} />
      {state}
    </span>
  );
}

/** A job's state; one that runs and gets nowhere because of an open incident is said to be stalled. */
export function JobState({ job, stalled }: { job: { state: string; paused: boolean }; stalled: boolean }) {
  if (job.paused) return <State state="paused" />;
  return stalled && job.state === "running" ? <State state="stalled" tone="bad" /> : <State state={job.state} />;
}

/** Whether a job ended with this incident. */
export const failed = (incident: { open: boolean; action: string }) => !incident.open && incident.action === "fail";
