// Ranks over time: what each of them was at, or how long its own steps took, with incidents, changes and
// checkpoints above.
import { useMemo, useState } from "preact/hooks";
import type { RankSeries } from "../api";
import { span, time } from "../format";
import { useQuery } from "../live";
import { Nothing, Section } from "./bits";
import { blend, Picture, ramp, type Draw } from "./canvas";

export interface Happened {
  at_s: number;
  /** End, of what lasts. */
  until_s?: number;
  kind: "incident" | "change" | "checkpoint" | "restart";
  text: string;
  href?: string;
}

export const SIGNS: Record<Happened["kind"], string> = { incident: "▲", change: "◆", checkpoint: "■", restart: "↻" };

/** What a rank may be at, in the order of the legend: word, colour, and whether it is hatched. */
const LOOKS: Record<string, [string, number, boolean]> = {
  training: ["--ok", 0.45, false],
  "data-wait": ["--move", 0.75, false],
  compiling: ["--held", 0.55, false],
  other: ["--accent", 0.45, false],
  "control-wait": ["--off", 0.4, false],
  starting: ["--off", 0.25, false],
  ending: ["--off", 0.25, false],
  paused: ["--off", 0.6, true],
  stalled: ["--bad", 0.9, true],
};

export function Timeline({ job, lastS, happened, every }: { job: string; lastS: number; happened: Happened[]; every: number }) {
  const [what, setWhat] = useState<"phase" | "own">("phase");
  const found = useQuery<RankSeries>(`/jobs/${encodeURIComponent(job)}/series/ranks?what=${what}&last_s=${lastS}&columns=160&rows=256`, { every, on: () => false });
  const data = found.data;
  const cells = data?.rows.length && data.at_s.length;
  const from = data?.at_s[0] ?? 0;
  const until = data ? (data.at_s[data.at_s.length - 1] ?? 0) + data.width_s : 0;
  const inside = happened.filter((one) => one.at_s >= from - 1 && one.at_s <= until + 1);
  const highest = useMemo(() => (what === "own" ? data?.rows : undefined)?.reduce((most, row) => row.reduce<number>((m, v) => Math.max(m, v ?? 0), most), 1e-9) ?? 1e-9, [data, what]);
  const draw: Draw = (ctx, width, css) => {
    const rows = data!.rows;
    const tall = height(rows.length);
    const row = tall / rows.length;
    const x = (at: number) => ((at - from) / (until - from)) * width;
    const bg = css("--bg");
    const hatch = hatched(ctx, bg);
    ctx.fillStyle = bg;
    ctx.fillRect(0, 0, width, tall);
    for (const one of inside) {
      if (one.kind !== "incident") continue;
      ctx.fillStyle = css("--bad-soft");
      ctx.fillRect(x(one.at_s), 0, Math.max(2, x(one.until_s ?? until) - x(one.at_s)), tall);
    }
    const looks = data!.phases.map((word) => LOOKS[word] ?? LOOKS.other!);
    const colors = looks.map((look) => blend(bg, css(look[0]), look[1]));
    const heat = ramp(css("--soft"), css("--accent"));
    const ends = data!.at_s.map((at) => x(at));
    ends.push(width);
    const tallest = Math.max(1, row - (row > 5 ? 1 : 0));
    rows.forEach((values, r) => {
      // Equal cells beside each other are one rectangle: most of a healthy job is one colour.
      for (let c = 0; c < values.length; ) {
        const value = values[c]!;
        let past = c + 1;
        while (past < values.length && values[past] === value) past++;
        if (value !== null && !(what === "phase" && !value)) {
          const [left, wide] = [ends[c]!, Math.max(1, ends[past]! - ends[c]!)];
          ctx.fillStyle = what === "phase" ? colors[value]! : heat(value / highest);
          ctx.fillRect(left, r * row, wide, tallest);
          if (what === "phase" && looks[value]![2] && row > 3) {
            ctx.fillStyle = hatch;
            ctx.fillRect(left, r * row, wide, tallest);
          }
        }
        c = past;
      }
    });
    ctx.setLineDash([2, 2]);
    for (const one of inside) {
      if (one.kind === "checkpoint") continue;
      ctx.strokeStyle = css(one.kind === "incident" ? "--bad" : "--dim");
      ctx.beginPath();
      ctx.moveTo(Math.round(x(one.at_s)) + 0.5, 0);
      ctx.lineTo(Math.round(x(one.at_s)) + 0.5, tall);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    return {
      at: (px, py) => {
        const r = Math.min(rows.length - 1, Math.floor(py / row));
        const at = from + (px / width) * (until - from);
        const c = data!.at_s.findLastIndex((s) => s <= at);
        const value = rows[r]?.[c];
        const who = data!.ranks_per_row === 1 ? `rank ${r}` : `ranks ${r * data!.ranks_per_row}–${Math.min(data!.ranks, (r + 1) * data!.ranks_per_row) - 1}`;
        const word = value === null || value === undefined ? "nothing recorded" : what === "phase" ? data!.phases[value] || "not running" : span(value);
        return { x: px, y: py, text: `${who} · ${time(at * 1e9)} · ${word}` };
      },
    };
  };
  const used = useMemo(() => (what === "phase" && data ? [...new Set(data.rows.flat())].map((code) => data.phases[code ?? 0] ?? "").filter((word) => LOOKS[word]) : []), [data, what]);
  return (
    <Section
      id="timeline"
      title="Timeline"
      aside={
        <div class="choice" role="group" aria-label="What the timeline shows">
          <button type="button" aria-pressed={what === "phase"} onClick={() => setWhat("phase")}>activity</button>
          <button type="button" aria-pressed={what === "own"} onClick={() => setWhat("own")}>own time</button>
        </div>
      }
    >
      {!cells ? (
        <Nothing>{data ? "Nothing is recorded of this time." : "Reading…"}</Nothing>
      ) : (
        <>
          <div class="marks">
            {apart(inside, (until - from) / 90).map((one, at) => {
              const place = { left: `${((one.at_s - from) / (until - from)) * 100}%` };
              return one.href ? (
                <a key={at} href={one.href} style={place} title={one.text} aria-label={one.text} class={one.kind}>{SIGNS[one.kind]}</a>
              ) : (
                <span key={at} style={place} title={one.text} class={one.kind}>{SIGNS[one.kind]}</span>
              );
            })}
          </div>
          <Picture height={() => height(data!.rows.length)} label={`What ${data!.ranks} ranks were at from ${time(from * 1e9)} to ${time(until * 1e9)}`} draw={draw} deps={[data, happened.length]} />
          <p class="legend">
            <span>{time(from * 1e9)}</span>
            {used.map((word) => <span key={word}><i class={`look ${word}`} />{word === "other" ? "other phase" : word}</span>)}
            {what === "own" && <span><i class="ramp" /> 0 to {span(highest)}</span>}
            {[...new Set(inside.map((one) => one.kind))].map((kind) => <span key={kind}>{SIGNS[kind]} {kind}</span>)}
            <span class="end">{time(until * 1e9)}</span>
          </p>
        </>
      )}
    </Section>
  );
}

/** Diagonal lines, so that colour is not the only sign of what is bad. */
function hatched(ctx: CanvasRenderingContext2D, color: string): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const inner = tile.getContext("2d");
  if (!inner) return color;
  inner.strokeStyle = color;
  inner.lineWidth = 1.5;
  for (const at of [-8, 0, 8]) {
    inner.beginPath();
    inner.moveTo(at, 8);
    inner.lineTo(at + 8, 0);
    inner.stroke();
  }
  return ctx.createPattern(tile, "repeat") ?? color;
}

/** Checkpoints that would touch each other are left out; the others are all there. */
function apart(happened: Happened[], least: number): Happened[] {
  let last = -Infinity;
  return happened.filter((one) => {
    if (one.kind !== "checkpoint") return true;
    if (one.at_s - last < least) return false;
    last = one.at_s;
    return true;
  });
}

const height = (rows: number) => Math.max(36, Math.min(320, rows * (rows <= 8 ? 18 : rows <= 32 ? 9 : 2)));
