// All ranks now: bars where there are few, a heat map where there are many.
import type { RanksNow } from "../api";
import { count, percent, plural, span } from "../format";
import { link } from "../session";
import { Section } from "./bits";
import { HeatMap } from "./heat";

const FEW = 32;

export function Ranks({ job, now }: { job: string; now: RanksNow | undefined }) {
  if (!now || !now.rank.length) return null;
  return now.rank.length > FEW ? <HeatMap job={job} now={now} /> : <Bars job={job} now={now} />;
}

/** What a step is made of, rank by rank. */
function Bars({ job, now }: { job: string; now: RanksNow }) {
  const whole = Math.max(1e-9, ...now.rank.map((_, at) => (now.own_s[at] ?? 0) + (now.wait_s[at] ?? 0)));
  const known = now.own_s.some((value) => value !== null);
  return (
    <Section id="ranks" title={plural(now.rank.length, "rank")} aside={<span>one step, median of the newest</span>}>
      <div class="bars" role="table" aria-label="What a step is made of, by rank">
        <div class="headline" role="row" style={{ display: "contents" }}>
          <span class="headline" role="columnheader">rank</span>
          <span class="headline" role="columnheader">a step</span>
          <span class="headline num" role="columnheader">own time</span>
          <span class="headline num" role="columnheader">waiting</span>
          <span class="headline num extra" role="columnheader">data</span>
          <span class="headline num extra" role="columnheader">lost share</span>
        </div>
        {now.rank.map((rank, at) => {
          const [own, wait, data] = [now.own_s[at] ?? 0, now.wait_s[at] ?? 0, now.data_s[at] ?? 0];
          const share = (part: number) => ({ width: `${(100 * part) / whole}%` });
          return (
            <div key={rank} role="row" style={{ display: "contents" }}>
              <span role="cell">
                <a href={`${link("job", job, "logs")}?rank=${rank}`}>{rank}</a> <small>{now.nodes[now.node[at]!]} · step {count(now.step[at])}{phase(now, at)}</small>
              </span>
              <span role="cell" class="stackbar" title={`own ${span(own)}, waiting ${span(wait)}, data ${span(data)}`}>
                <i class="own" style={share(Math.max(0, own - data))} />
                <i class="data" style={share(Math.min(own, data))} />
                <i class="wait" style={share(wait)} />
              </span>
              <span role="cell" class="num">{span(now.own_s[at])}</span>
              <span role="cell" class="num">{span(now.wait_s[at])}</span>
              <span role="cell" class="num extra">{span(now.data_s[at])}</span>
              <span role="cell" class="num extra">{percent(now.lost_share[at])}</span>
            </div>
          );
        })}
      </div>
      <p class="legend">
        {known ? (
          <>
            <span><i class="own" /> own time</span>
            <span><i class="data" /> waiting for data, within it</span>
            <span><i class="wait" /> waiting for other ranks</span>
          </>
        ) : (
          <span>No steps of all ranks are known yet.</span>
        )}
      </p>
    </Section>
  );
}

function phase(now: RanksNow, at: number): string {
  const word = now.alive[at] ? now.phases[now.phase[at]!] : "ended";
  return word && word !== "training" ? ` · ${word}` : "";
}
