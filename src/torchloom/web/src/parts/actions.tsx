// What changes something: each asks once, says what will happen, and is hidden from who may only read.
import { useState } from "preact/hooks";
import type { JobCreated, JobSummary, NodeView } from "../api";
import { plural } from "../format";
import { useCell } from "../live";
import { post } from "../net";
import { canAct, go, link, who } from "../session";
import { Ask, type Question } from "./bits";

export function useMayAct(): boolean {
  useCell(who);
  return canAct();
}

function useAsk(): [(question: Question) => void, preact.JSX.Element | null] {
  const [question, setQuestion] = useState<Question | null>(null);
  return [setQuestion, question && <Ask question={question} close={() => setQuestion(null)} />];
}

export function SubmitJob() {
  const [open, setOpen] = useState(false);
  const [script, setScript] = useState("");
  const [args, setArgs] = useState("");
  const [workers, setWorkers] = useState("2");
  const [name, setName] = useState("");
  if (!useMayAct()) return null;
  const act = async () => {
    const made = await post<JobCreated>("/jobs", {
      ...(script ? { script, args: args.split(/\s+/).filter(Boolean) } : {}),
      ...(name ? { name } : {}),
      world_size: Number(workers),
    });
    go(link("job", made.job));
  };
  const fields = (
    <>
      <Field label="Script: path on the node; empty for the example that comes with torchloom" value={script} set={setScript} placeholder="/home/me/train.py" />
      <Field label="Arguments, separated by spaces" value={args} set={setArgs} placeholder="--steps 1000" />
      <Field label="Workers" value={workers} set={setWorkers} type="number" />
      <Field label="Name (made up if empty)" value={name} set={setName} placeholder="my-run" />
    </>
  );
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>Submit a job</button>
      {open && <Ask close={() => setOpen(false)} question={{ title: "Submit a job", says: "It starts as soon as there is room.", verb: "Submit", fields, act }} />}
    </>
  );
}

export function Field({ label, value, set, type = "text", placeholder = "" }: { label: string; value: string; set: (text: string) => void; type?: "text" | "number"; placeholder?: string }) {
  const id = `f-${label.replace(/\W+/g, "-")}`;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {type === "number" ? (
        <input id={id} type="number" value={value} onInput={(e) => set(e.currentTarget.value)} />
      ) : (
        <input id={id} type="text" value={value} placeholder={placeholder} onInput={(e) => set(e.currentTarget.value)} />
      )}
    </div>
  );
}

export function JobActions({ job, refresh }: { job: JobSummary; refresh: () => void }) {
  const [ask, asked] = useAsk();
  const [workers, setWorkers] = useState(String(job.wanted_workers));
  if (!useMayAct()) return null;
  const at = `/jobs/${encodeURIComponent(job.id)}`;
  const does = (path: string, body?: unknown) => async () => {
    await post(at + path, body);
    refresh();
  };
  const n = plural(job.world_size, "rank");
  if (job.ended) return null;
  return (
    <div class="actions">
      {job.paused ? (
        <button type="button" onClick={() => ask({ title: `Resume ${job.id}`, says: `All ${n} continue with the step they stand before.`, verb: "Resume", act: does("/resume", {}) })}>Resume</button>
      ) : (
        <button type="button" onClick={() => ask({ title: `Pause ${job.id}`, says: `All ${n} stop before the same step and keep what they hold. Nothing is lost; devices stay taken.`, verb: "Pause", act: does("/pause", {}) })}>Pause</button>
      )}
      <button type="button" onClick={() => ask({ title: `Checkpoint ${job.id} now`, says: "The state after one step is saved on all ranks. Training continues.", verb: "Checkpoint", act: does("/checkpoint", {}) })}>Checkpoint now</button>
      <button
        type="button"
        onClick={() =>
          ask({
            title: `Scale ${job.id}`,
            says: "The job is saved, stops at a step boundary and starts again with the new number of workers.",
            verb: "Scale",
            fields: <Scale first={workers} set={setWorkers} />,
            act: async () => {
              await post(`${at}/scale`, { workers: Number(latest.workers) });
              refresh();
            },
          })
        }
      >
        Scale
      </button>
      <button type="button" onClick={() => ask({ title: `Stop ${job.id}`, says: `All ${n} end at a step boundary and the job is over. It can be restored from a checkpoint later.`, verb: "Stop the job", destroys: true, act: does("/stop", {}) })}>Stop</button>
      {asked}
    </div>
  );
}

/** What was typed last: the dialog is drawn once, with the question it was opened with. */
const latest = { workers: "" };

function Scale({ first, set }: { first: string; set: (text: string) => void }) {
  const [text, setText] = useState(first);
  latest.workers = text;
  return <Field label="Workers" value={text} set={(t) => (setText(t), set(t))} type="number" />;
}

export function NodeActions({ node }: { node: NodeView }) {
  const [ask, asked] = useAsk();
  if (!useMayAct()) return null;
  const at = `/nodes/${encodeURIComponent(node.id)}`;
  return (
    <>
      {node.drained ? (
        <button type="button" class="quiet" onClick={() => ask({ title: `Open ${node.id}`, says: "Workers may be placed there again.", verb: "Open", act: () => post(`${at}/open`) })}>open</button>
      ) : (
        <button
          type="button"
          class="quiet"
          onClick={() => ask({ title: `Drain ${node.id}`, says: `No new workers are placed there. Jobs with ${plural(node.workers, "worker")} there are saved and move to other nodes, if there is room; what cannot be saved stays.`, verb: "Drain", destroys: true, act: () => post(`${at}/drain`, { why: "drained on the page" }) })}
        >
          drain
        </button>
      )}
      {node.seen_s !== null && node.seen_s > 3 && (
        <button type="button" class="quiet" onClick={() => ask({ title: `${node.id} is gone`, says: "You confirm that this host is dead. Its workers count as ended and their jobs recover on other nodes.", verb: "It is gone", destroys: true, act: () => post(`${at}/gone`) })}>gone</button>
      )}
      {asked}
    </>
  );
}
