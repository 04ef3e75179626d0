// Small pieces that several pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ago, full, time } from "../format";
import { now, standing, useCell } from "../live";
import { Refused } from "../net";
import { Mark } from "./mark";

export function Section({ id, title, aside, children }: { id: string; title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section id={id} aria-labelledby={`${id}-title`}>
      <header class="section">
        <h2 id={`${id}-title`}>{title}</h2>
        {aside && <div class="aside">{aside}</div>}
      </header>
      {children}
    </section>
  );
}

export function Facts({ children }: { children: ComponentChildren }) {
  return <dl class="facts">{children}</dl>;
}

export function Fact({ name, children, note }: { name: string; children: ComponentChildren; note?: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {children}
        {note && <small>{note}</small>}
      </dd>
    </div>
  );
}

export function Time({ ns }: { ns: number }) {
  return ns ? <time dateTime={full(ns)} title={full(ns)}>{time(ns)}</time> : <>–</>;
}

export function Ago({ ns }: { ns: number }) {
  const at = useCell(now);
  return <time dateTime={full(ns)} title={full(ns)}>{ago(ns, at)}</time>;
}

export function Trouble({ error }: { error: Refused | null }) {
  const lost = useCell(standing) === "lost";
  if (!error || error.status === 401 || (lost && error.status === 0)) return null; // said at the top of the page
  return (
    <p class="trouble" role="alert">
      <Mark tone="warn" /> {error.message}
    </p>
  );
}

export function Nothing({ children }: { children: ComponentChildren }) {
  return <p class="nothing">{children}</p>;
}

export function Bar({ share, label }: { share: number; label: string }) {
  return (
    <span class="bar" role="img" aria-label={label}>
      <span style={{ width: `${Math.max(0, Math.min(1, share)) * 100}%` }} />
    </span>
  );
}

export function Copy({ text, what }: { text: string; what: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      class="quiet"
      onClick={async () => {
        await copyText(text);
        setDone(true);
        setTimeout(() => setDone(false), 1500);
      }}
    >
      {done ? "copied" : `copy ${what}`}
    </button>
  );
}

/** Without https the clipboard of browsers is closed; a selected text field still works. */
async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

export interface Question {
  title: string;
  /** What will happen. */
  says: ComponentChildren;
  verb: string;
  destroys?: boolean;
  fields?: ComponentChildren;
  act: () => Promise<unknown>;
}

/** Asks once before something is done, and shows what was refused. */
export function Ask({ question, close }: { question: Question; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [error, setError] = useState<Refused | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="ask-title">
      <form
        method="dialog"
        onSubmit={async (event) => {
          event.preventDefault();
          setBusy(true);
          setError(null);
          try {
            await question.act();
            close();
          } catch (failed) {
            setError(failed instanceof Refused ? failed : new Refused(0, String(failed)));
            setBusy(false);
          }
        }}
      >
        <h2 id="ask-title">{question.title}</h2>
        <div class="says">{question.says}</div>
        {question.fields}
        <Trouble error={error} />
        <div class="buttons">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class={question.destroys ? "danger" : "primary"} disabled={busy}>{busy ? "Asking…" : question.verb}</button>
        </div>
      </form>
    </dialog>
  );
}

/** The first rows, and all of them on request: a table of thousands is slow to lay out and not read anyway. */
export function useSome<T>(rows: T[], first: number): [T[], ComponentChildren] {
  const [all, setAll] = useState(false);
  const shown = all ? rows : rows.slice(0, first);
  const more = rows.length - shown.length;
  return [shown, more > 0 ? <button type="button" class="quiet more" onClick={() => setAll(true)}>show {more} more</button> : null];
}
