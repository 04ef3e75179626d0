// Devices: how they are, and taking them out of use. What will happen to which job is asked of the service first.
import { useEffect, useState } from "preact/hooks";
import type { DeviceEntry, DeviceMap, DeviceMarkView } from "../api";
import { percent } from "../format";
import { useQuery } from "../live";
import { post, Refused } from "../net";
import { useMayAct } from "./actions";
import { Ask, Section, Trouble, useSome, type Question } from "./bits";
import { State, type Tone } from "./mark";

const TONES: Record<string, Tone> = { available: "ok", testing: "move", draining: "move", drained: "held", failed: "bad", absent: "warn", degraded: "warn", failing: "bad" };

export function DeviceState({ device }: { device: DeviceEntry }) {
  const ill = device.health !== "ok" && device.state !== "failed";
  return (
    <>
      <State state={device.state} tone={TONES[device.state]} />
      {ill && <span class="sub"><State state={device.health} tone={TONES[device.health]} />{device.health_why && ` ${device.health_why}`}</span>}
      {device.testing && <span class="sub">a test runs on it, requested by {device.testing}</span>}
      {device.wants_test && !device.testing && <span class="sub">to be tested when no worker uses it</span>}
      {device.out && <span class="sub">{device.out}</span>}
    </>
  );
}

/** The probability to fail within 24 h, and what raises it; or what is missing for one. */
export function DeviceRisk({ device }: { device: DeviceEntry }) {
  if (device.risk === null) return <span class="dim">{device.risk_why}</span>;
  const said = `${percent(device.risk)} within 24 h`;
  return (
    <>
      {device.at_risk ? <State state={`at risk: ${said}`} tone="warn" /> : said}
      <span class="sub">{device.risk_why}</span>
    </>
  );
}

export function DeviceActions({ device }: { device: DeviceEntry }) {
  const [question, setQuestion] = useState<Question | null>(null);
  if (!useMayAct()) return null;
  const at = `/devices/${encodeURIComponent(device.device)}`;
  const why = "on the page";
  const out = device.out !== "";
  const testable = device.state !== "absent" && !device.workers.length;
  const back = (): Question => ({ title: `Return ${device.device}`, says: device.state === "draining" ? "Its drain is cancelled." : "Workers may be placed on it again.", verb: "Return", act: () => post(`${at}/return`, { why }) });
  const test = (): Question => ({
    title: `Test ${device.device}`,
    says: `It takes some seconds, and the device gets no worker meanwhile. ${out ? "If it passes, it is returned to use; otherwise it stays out." : "If it fails, its health is failing, and the policy decides."}`,
    verb: "Test",
    act: () => (out ? post(`${at}/return`, { why, test: true }) : post(`${at}/test`, { why })),
  });
  const drain = (): Question => ({
    title: `Drain ${device.device}`,
    says: <Outcome path={`${at}/drain`} says="It gets no new workers. Jobs on it are saved, stop at a step boundary and resume without it." />,
    verb: "Drain",
    destroys: true,
    act: () => post(`${at}/drain`, { why }),
  });
  const fail = (): Question => ({
    title: `${device.device} has failed`,
    says: <Outcome path={`${at}/failures`} says="You report that it is broken. Jobs on it are restarted without it at once, from their newest checkpoint." />,
    verb: "It has failed",
    destroys: true,
    act: () => post(`${at}/failures`, { why }),
  });
  const button = (word: string, make: () => Question) => <button type="button" class="quiet" aria-label={`${word} ${device.device}`} onClick={() => setQuestion(make())}>{word}</button>;
  return (
    <>
      {device.state === "testing" ? null : out ? button("return", back) : <>{button("drain", drain)} {button("fail", fail)}</>}
      {device.state !== "testing" && testable && <> {button(out ? "test and return" : "test", test)}</>}
      {question && <Ask question={question} close={() => setQuestion(null)} />}
    </>
  );
}

/** What it would do to which job, from a dry run. */
function Outcome({ path, says }: { path: string; says: string }) {
  const [found, setFound] = useState<DeviceMarkView | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  useEffect(() => {
    post<DeviceMarkView>(path, { why: "", dry_run: true }).then(setFound, setError);
  }, [path]);
  return (
    <>
      <p>{says}</p>
      <Trouble error={error} />
      {found && !found.affected.length && <p class="dim">No job is on it now.</p>}
      {found && found.affected.length > 0 && <ul class="plain">{found.affected.map((one) => <li key={one.job}><b>{one.job}</b>: {one.outcome}</li>)}</ul>}
    </>
  );
}

/** Only those that need a look: out of use, tested, likely to fail, or not well. */
export function DevicesOut() {
  const map = useQuery<DeviceMap>("/devices", { every: 10000, on: (e) => e.topics.includes("device") });
  const found = (map.data?.devices ?? []).filter((one) => one.state !== "available" || one.health !== "ok" || one.at_risk || one.wants_test);
  const [rows, more] = useSome(found, 20);
  if (!found.length) return null;
  return (
    <Section id="devices" title="Devices that are out of use, at risk or not well">
      <table class="stack" aria-label="Devices to look at">
        <thead><tr><th>State</th><th>Device</th><th>Node</th><th>Risk</th><th>Workers</th><th><span class="only-read">Actions</span></th></tr></thead>
        <tbody>
          {rows.map((one) => (
            <tr key={one.device}>
              <td class="wide"><DeviceState device={one} /></td>
              <td class="name mono">{one.device}<span class="sub">{one.name || one.kind}</span></td>
              <td data-name="node">{one.node}</td>
              <td class="wide" data-name="risk"><DeviceRisk device={one} /></td>
              <td data-name="workers">{one.workers.map((w) => `${w.job} rank ${w.rank}`).join(", ") || "–"}</td>
              <td><DeviceActions device={one} /></td>
            </tr>
          ))}
        </tbody>
      </table>
      {more}
    </Section>
  );
}
