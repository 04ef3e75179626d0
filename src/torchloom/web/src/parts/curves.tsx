// Curves over time: the mean as a line, lowest to highest as a band, and marks where something was changed.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { JobSeries, SeriesView } from "../api";
import { digits, short, span, value } from "../format";
import { useCell, useQuery } from "../live";
import { isDark } from "../session";
import { Nothing, Section } from "./bits";
import { blend } from "./canvas";
import { SIGNS, type Happened } from "./timeline";

const HIDDEN = new Set(["step", "step_s_p95"]);
/** What loom.Checkpoint reports of itself. */
const OURS = /^metric:(restored?_|checkpoint_|memory_)/;

export function Curves({ job, lastS, happened, every }: { job: string; lastS: number; happened: Happened[]; every: number }) {
  const found = useQuery<JobSeries>(`/jobs/${encodeURIComponent(job)}/series?last_s=${lastS}&points=300`, { every, on: () => false });
  const all = found.data?.series ?? [];
  const p95 = all.find((one) => one.name === "step_s_p95");
  const [log, setLog] = useState<boolean | null>(null);
  const sorted = useMemo(() => all.filter((one) => !HIDDEN.has(one.name) && one.at_s.length > 1).sort((a, b) => rank(a.name) - rank(b.name)), [all]);
  const flat = (one: SeriesView) => constant(one) && !ORDER.includes(one.name);
  const charts = sorted.filter((one) => !OURS.test(one.name) && !flat(one));
  const saving = sorted.filter((one) => OURS.test(one.name) && !flat(one));
  const steady = sorted.filter(flat);
  return (
    <Section id="curves" title="Curves" aside={
        <div class="choice" role="group" aria-label="Scale">
          {([["auto", null], ["linear", false], ["log", true]] as const).map(([word, way]) => <button key={word} type="button" aria-pressed={log === way} onClick={() => setLog(way)}>{word}</button>)}
        </div>
      }>
      {!found.data ? (
        <Nothing>Reading…</Nothing>
      ) : !charts.length ? (
        <Nothing>Nothing is recorded of this time.</Nothing>
      ) : (
        <div class="charts">
          {charts.map((one) => <Chart key={one.name} series={one} second={one.name === "step_s" ? p95 : undefined} happened={happened} log={log} />)}
        </div>
      )}
      {saving.length > 0 && (
        <details class="spaced">
          <summary>checkpointing</summary>
          <div class="charts">{saving.map((one) => <Chart key={one.name} series={one} happened={happened} log={false} />)}</div>
        </details>
      )}
      {steady.length > 0 && <p class="legend">Unchanged: {steady.map((one) => `${title(one.name)} ${value(last(one))}`).join(" · ")}</p>}
    </Section>
  );
}

const ORDER = ["metric:loss", "step_s", "steps_per_s"];
const rank = (name: string) => (ORDER.includes(name) ? ORDER.indexOf(name) : name.startsWith("setting:") ? 50 : 20);
const constant = (one: SeriesView) => new Set(one.mean.filter((v) => v !== null)).size <= 1;
const last = (one: SeriesView) => one.mean.findLast((v) => v !== null) ?? null;
const seconds = (name: string) => name.endsWith("_s") && name.startsWith("step_s");

function title(name: string): string {
  if (name === "step_s") return "step time: median, 95th percentile, lowest to highest";
  if (name === "steps_per_s") return "pace, steps/s";
  return name.replace(/^(metric|setting):/, "");
}

function Chart({ series, second, happened, log }: { series: SeriesView; second?: SeriesView; happened: Happened[]; log: boolean | null }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const marks = useRef(happened);
  marks.current = happened;
  const chosen = useCell(isDark);
  const data = useMemo(() => columns(series, second), [series, second]);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const css = (name: string) => style.getPropertyValue(name).trim();
    const inTime = seconds(series.name);
    const logarithmic = isLog(series, log);
    const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const made = new uPlot(
      {
        width: box.current!.clientWidth,
        height: 136,
        cursor: { sync: { key: "loom" }, y: false, points: { size: 5 } },
        legend: { show: false },
        scales: {
          x: { time: true, range: (_, from, until) => (until - from >= 1 ? [from, until] : [from - 0.5, from + 0.5]) },
          y: logarithmic ? { distr: 3, range: (_, low, high) => powers(low, high) } : { range: (_, low, high) => padded(low, high) },
        },
        axes: [
          { ...axis, space: 70, size: 24, values: (_, ticks) => ticks.map((t, at) => clock(t, ticks[at - 1])) },
          { ...axis, filter: all, grid: { ...axis.grid, filter: all }, splits: (_, __, low, high) => (logarithmic ? decades(low, high) : ticks(low, high)), size: 54, space: 28, values: (_, at) => at.map((t) => (inTime ? span(t) : short(digits(t, worth(at))))) },
        ],
        series: [
          {},
          { stroke: "transparent", points: { show: false } },
          { stroke: "transparent", points: { show: false } },
          { stroke: css("--accent"), width: 1.5, spanGaps: false, points: { show: false } },
          ...(second ? [{ stroke: css("--dim"), width: 1, dash: [3, 3], points: { show: false } }] : []),
        ],
        bands: [{ series: [2, 1], fill: blend(css("--bg"), css("--accent"), 0.16) }],
        hooks: { draw: [(u) => drawMarks(u, marks.current, css)] },
      },
      data,
      box.current!,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: box.current?.clientWidth ?? 300, height: 136 }));
    watch.observe(box.current!);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [series.name, !!second, chosen, isLog(series, log)]);
  useEffect(() => plot.current?.setData(data), [data]);
  const newest = last(series);
  return (
    <figure class="chart" aria-label={`${title(series.name)}, now ${value(newest)}`}>
      <h3>
        {title(series.name)} <b>{seconds(series.name) ? span(newest) : value(newest)}</b>
      </h3>
      <div ref={box} aria-hidden="true" />
    </figure>
  );
}

/** 14:05:20; without seconds where ticks are minutes apart; the day where it changes. */
function clock(at: number, before: number | undefined): string {
  const date = new Date(at * 1000);
  const text = date.toTimeString();
  if (date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return before !== undefined && at - before >= 60 ? text.slice(0, 5) : text.slice(0, 8);
}

// Ranges and ticks are our own: those of uPlot do not end for some ranges (a log scale from just below a power of ten,
// values that differ by a rounding error), and fill the memory.

const MOST_TICKS = 12;
const all = (_: uPlot, at: number[]) => at;

/** About four round numbers between two others. */
function ticks(low: number, high: number): number[] {
  const raw = (high - low) / 4;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * size).find((one) => one >= raw) ?? raw;
  const first = Math.ceil(low / step);
  return Array.from({ length: MOST_TICKS }, (_, n) => (first + n) * step).filter((at) => at <= high);
}

/** The powers of ten around two positive numbers. */
function powers(low: number, high: number): [number, number] {
  if (!(low > 0) || !Number.isFinite(high)) return [1, 10];
  const from = Math.floor(Math.log10(low) + 1e-9);
  return [10 ** from, 10 ** Math.max(from + 1, Math.ceil(Math.log10(high) - 1e-9))];
}

function decades(low: number, high: number): number[] {
  const [from, until] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const every = Math.max(1, Math.ceil((until - from) / 5));
  return Array.from({ length: Math.min(MOST_TICKS, Math.floor((until - from) / every) + 1) }, (_, n) => 10 ** (from + n * every));
}

/** So many digits that two ticks never look alike. */
function worth(at: number[]): number {
  const most = Math.max(...at.map(Math.abs));
  const step = at.length > 1 ? Math.abs(at[1]! - at[0]!) : most;
  return step > 0 && most > 0 ? Math.max(3, Math.min(9, Math.ceil(Math.log10(most / step)) + 1)) : 3;
}

/** Of its own accord where a logged value spans two orders of magnitude. */
function isLog(series: SeriesView, log: boolean | null): boolean {
  const low = series.low.filter((v): v is number => v !== null);
  if (log === false || !low.length || low.some((v) => v <= 0)) return false;
  const high = series.high.filter((v): v is number => v !== null);
  return log === true || (series.name.startsWith("metric:") && Math.max(...high) > 100 * Math.min(...low));
}

function columns(series: SeriesView, second?: SeriesView): uPlot.AlignedData {
  const made: (number | null)[][] = [series.at_s, series.low, series.high, series.mean];
  if (second) {
    const by = new Map(second.at_s.map((at, i) => [at, second.mean[i] ?? null]));
    made.push(series.at_s.map((at) => by.get(at) ?? null));
  }
  return made as uPlot.AlignedData;
}

function padded(low: number, high: number): [number, number] {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const room = high - low > size * 1e-9 ? high - low : size * 0.1 || 1;
  const from = low - room * 0.08;
  return [low >= 0 && (from < 0 || low < room) ? 0 : from, high + room * 0.08];
}

function drawMarks(u: uPlot, happened: Happened[], css: (name: string) => string): void {
  const { ctx, bbox } = u;
  const sharp = devicePixelRatio || 1;
  ctx.save();
  ctx.setLineDash([3 * sharp, 3 * sharp]);
  ctx.font = `${10 * sharp}px system-ui`;
  ctx.textAlign = "center";
  for (const one of happened) {
    if (one.kind === "checkpoint") continue;
    const x = u.valToPos(one.at_s, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = css(one.kind === "incident" ? "--bad" : "--dim");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(SIGNS[one.kind], x, bbox.top + 9 * sharp);
  }
  ctx.restore();
}
