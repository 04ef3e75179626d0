// Logs of one rank or all: only the lines that are seen are drawn, so a million of them scroll like a hundred.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { JobLogs, JobSummary, LogEnd, LogLines } from "../api";
import { pieces } from "../ansi";
import { count, plural } from "../format";
import { ofJob, useQuery } from "../live";
import { get, Refused, stream } from "../net";
import { Trouble } from "../parts/bits";
import { go, link } from "../session";
import { JobHead, jobPath, Missing } from "./job";

const ROW = 18;
const MOST = 1_000_000;
const TAIL = 5000;

/** Lines as they came; the rank is beside each. Kept outside of the components: a million of them is no state. */
class Book {
  texts: string[] = [];
  ranks: number[] = [];
  dropped = 0;
  private rest = new Map<number, string>();

  add(rank: number, text: string): void {
    const lines = ((this.rest.get(rank) ?? "") + text).split("\n");
    this.rest.set(rank, lines.pop() ?? "");
    for (const line of lines) {
      this.texts.push(folded(line));
      this.ranks.push(rank);
    }
    if (this.texts.length > MOST * 1.1) {
      const gone = this.texts.length - MOST;
      this.texts.splice(0, gone);
      this.ranks.splice(0, gone);
      this.dropped += gone;
    }
  }

  /** What came without a line end, when nothing more comes. */
  close(): void {
    for (const [rank, text] of this.rest) if (text) this.add(rank, "\n");
  }
}

/** The last state of a progress bar: a carriage return begins the line anew. */
function folded(line: string): string {
  const text = line.endsWith("\r") ? line.slice(0, -1) : line;
  return text.slice(text.lastIndexOf("\r") + 1);
}

export function LogsPage({ id, query }: { id: string; query: URLSearchParams }) {
  const summary = useQuery<JobSummary>(`${jobPath(id)}/summary`, { every: 2000, on: ofJob(id) });
  const rank = query.get("rank") ?? "";
  const grep = query.get("find") ?? "";
  const whole = query.has("whole");
  const [text, setText] = useState(grep);
  const job = summary.data;
  const move = (next: { rank?: string; find?: string; whole?: string }) => {
    const made = new URLSearchParams({ ...(rank && { rank }), ...(grep && { find: grep }), ...(whole && { whole: "1" }) });
    for (const [name, given] of Object.entries(next)) given ? made.set(name, given) : made.delete(name);
    go(`${link("job", id, "logs")}${made.size ? `?${made}` : ""}`, true);
  };
  if (!job) return summary.error ? <Missing id={id} error={summary.error.message} /> : <p class="dim">Reading…</p>;
  return (
    <>
      <JobHead job={job} part="logs" refresh={summary.refresh} />
      <form class="logbar" onSubmit={(event) => (event.preventDefault(), move({ find: text }))}>
        <label for="log-rank">Rank</label>
        <input id="log-rank" type="number" min="0" max={job.world_size - 1} placeholder="all" value={rank} onChange={(e) => move({ rank: e.currentTarget.value })} />
        <input type="search" aria-label="Search the whole log" placeholder="search the whole log, Enter" value={text} onInput={(e) => (setText(e.currentTarget.value), e.currentTarget.value || move({ find: "" }))} />
        <button type="submit">Search</button>
        {!grep && <button type="button" aria-pressed={whole} onClick={() => move({ whole: whole ? "" : "1" })}>{whole ? "only the end" : "from the beginning"}</button>}
      </form>
      <Log key={`${id} ${rank} ${grep} ${whole}`} job={id} rank={rank} grep={grep} whole={whole} />
    </>
  );
}

function Log({ job, rank, grep, whole }: { job: string; rank: string; grep: string; whole: boolean }) {
  const book = useMemo(() => new Book(), []);
  const box = useRef<HTMLDivElement>(null);
  const [lines, setLines] = useState(0);
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(600);
  const [following, setFollowing] = useState(true);
  const [ended, setEnded] = useState("");
  const [waited, setWaited] = useState(false);
  const [error, setError] = useState<Refused | null>(null);
  // Where we know the box to be, and how many lines had gone from its beginning then.
  const known = useRef({ top: 0, dropped: 0 });
  useEffect(() => {
    const abort = new AbortController();
    let frame = 0;
    const shown = () => {
      frame = 0;
      setLines(book.texts.length);
    };
    const soon = () => (frame ||= requestAnimationFrame(shown));
    void (grep ? search(book, job, rank, grep, abort.signal) : read(book, job, rank, whole, abort.signal, soon, setEnded))
      .catch((failed) => !abort.signal.aborted && setError(failed instanceof Refused ? failed : new Refused(0, String(failed))))
      .finally(() => (setWaited(true), soon()));
    const patience = setTimeout(() => setWaited(true), 1500);
    return () => {
      clearTimeout(patience);
      abort.abort();
      cancelAnimationFrame(frame);
    };
  }, []);
  useEffect(() => {
    const element = box.current!;
    const watch = new ResizeObserver(() => setTall(element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  // In the render itself: an effect that waits for the next frame would undo what a person scrolled meanwhile.
  useLayoutEffect(() => {
    const element = box.current!;
    const gone = book.dropped - known.current.dropped;
    known.current.dropped = book.dropped;
    if (!following) element.scrollTop -= gone * ROW;
    else if (wentUp(element, known.current.top)) return; // the event of that scroll is still to come
    else element.scrollTop = lines * ROW;
    known.current.top = element.scrollTop;
  }, [lines, following]);
  const first = Math.max(0, Math.floor(top / ROW) - 20);
  const past = Math.min(lines, Math.ceil((top + tall) / ROW) + 20);
  const rows = [];
  for (let at = first; at < past; at++) rows.push(<Line key={at + book.dropped} at={at} rank={book.ranks[at]!} text={book.texts[at]!} alone={rank !== ""} />);
  return (
    <>
      <Trouble error={error} />
      <div
        ref={box}
        class="log"
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label={`Log of ${rank ? `rank ${rank}` : "all ranks"}`}
        onScroll={(event) => {
          const element = event.currentTarget;
          if (atEnd(element)) setFollowing(true);
          else if (wentUp(element, known.current.top)) setFollowing(false);
          known.current.top = element.scrollTop;
          setTop(element.scrollTop);
        }}
      >
        {!lines && (ended || waited) && <p class="nothing">{grep ? "No line contains this text." : "No output yet."}</p>}
        <div class="sheet" style={{ height: `${lines * ROW}px` }}>{rows}</div>
      </div>
      <p class="legend">
        <span data-testid="lines">{plural(lines, "line")}{book.dropped ? `, ${count(book.dropped)} older ones dropped here` : ""}</span>
        <span>{grep ? `that contain “${grep}”` : ended ? `end of the log: the job is ${ended}` : following ? "following" : "not following: scrolled up"}</span>
        {!following && <button type="button" class="quiet" onClick={() => setFollowing(true)}>to the end</button>}
      </p>
    </>
  );
}

const atEnd = (box: HTMLElement) => box.scrollHeight - box.scrollTop - box.clientHeight < 2 * ROW;

/** Only a person goes up and not to the end: lines that came since we scrolled there are below it. */
const wentUp = (box: HTMLElement, from: number) => box.scrollTop < from && !atEnd(box);

function Line({ at, rank, text, alone }: { at: number; rank: number; text: string; alone: boolean }) {
  return (
    <div class="row" style={{ transform: `translateY(${at * ROW}px)` }}>
      {!alone && <span class="who">{rank}</span>}
      {pieces(text).map((piece, n) => (piece.look ? <span key={n} class={piece.look}>{piece.text}</span> : piece.text))}
    </div>
  );
}

async function search(book: Book, job: string, rank: string, grep: string, signal: AbortSignal): Promise<void> {
  const query = new URLSearchParams({ grep, tail: "10000", interleaved: "true", ...(rank && { rank }) });
  const found = await get<JobLogs>(`${jobPath(job)}/logs?${query}`, signal);
  for (const line of found.lines) book.add(line.rank, line.text);
  for (const one of found.logs) if (one.error) book.add(one.rank, `(${one.error})\n`);
  book.close();
}

/** Follow the log; a connection that breaks is made again where it was. */
async function read(book: Book, job: string, rank: string, whole: boolean, signal: AbortSignal, soon: () => void, end: (state: string) => void): Promise<void> {
  const query = new URLSearchParams({ ...(!whole && { tail: String(TAIL) }), ...(rank && { rank }) });
  let last = "";
  for (let pause = 500; !signal.aborted; pause = Math.min(4000, pause * 2)) {
    try {
      for await (const sent of stream(`${jobPath(job)}/logs/stream?${query}`, last, signal)) {
        if (!sent) continue;
        if (sent.id) last = sent.id;
        if (sent.kind === "end") {
          book.close();
          return end((sent.data as LogEnd).state);
        }
        const piece = sent.data as LogLines;
        if (piece.lost_bytes) book.add(piece.rank, `(${count(piece.lost_bytes)} bytes of the log are gone)\n`);
        book.add(piece.rank, piece.text);
        pause = 500;
        soon();
      }
    } catch (error) {
      if (signal.aborted || (error instanceof Refused && error.status >= 400 && error.status < 500)) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
