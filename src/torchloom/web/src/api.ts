// Made by scripts/make_web_types.py from the OpenAPI description of the API.

export interface AffectedJobView {
  job: string;
  ranks: Array<number>;
  outcome: string;
}

export interface AuthoritiesView {
  ca: string;
}

export interface BoxView {
  rank: number;
  found: boolean;
  collectives: Array<Record<string, unknown>>;
  steps: Array<Record<string, number>>;
  groups: Array<Record<string, unknown>>;
  hyperparameters: Record<string, unknown> | Array<unknown>;
  metrics: Record<string, unknown>;
  torn: number;
  error: string;
}

export interface ChangePlanView {
  job: string;
  operation: string;
  dry_run: boolean;
  differences: Array<DifferenceView>;
  at_step: number | null;
  notes: Array<string>;
}

export interface ChangeRequest {
  values: Record<string, unknown>;
  at_step?: number | null;
  mode?: "hold" | "scale";
  why?: string;
  dry_run?: boolean;
}

export interface CheckpointBody {
  directory: string | null;
  every: number | null;
}

export interface CheckpointList {
  job: string;
  store: string;
  name: string;
  node: string;
  restored: string;
  restored_from: string;
  restored_generation: number;
  interval: number;
  memory_interval: number;
  failing: string;
  left_out: number;
  checkpoints: Array<CheckpointView>;
}

export interface CheckpointView {
  name: string;
  step: number;
  generation: number;
  where: string;
  whole: boolean;
  why: string;
  verified_ns: number;
  pinned: boolean;
  resumable: boolean;
  newest: boolean;
  created_ns: number;
  size: number;
  world: number;
  epoch: number;
  config_version: number;
  parent: string;
  finite: boolean;
  metrics: Record<string, number>;
  lineage: Record<string, string>;
}

export interface ConfigView {
  job: string;
  version: number;
  paused: boolean;
  known: boolean;
  optimizers: Array<string>;
  settings: Array<SettingView>;
  schedule: Array<EntryView>;
  operations: Array<OperationView>;
}

export interface DecisionView {
  id: string;
  do: string;
  node: string;
  ranks: Array<number>;
  who: string;
  reason: string;
  recorded: "same" | "differs" | "not recorded";
}

export interface DeviceDetail {
  device: string;
  kind: string;
  name: string;
  node: string;
  workers: Array<DeviceUser>;
  replicas: Array<string>;
  state: "available" | "draining" | "drained" | "failed" | "absent" | "testing";
  out: string;
  out_at_ns: number;
  health: "ok" | "degraded" | "failing" | "failed";
  health_why: string;
  risk: number | null;
  risk_why: string;
  at_risk: boolean;
  testing: string;
  wants_test: string;
  drivers: Array<DriverView>;
  tests: Array<TestView>;
  reports: Array<HealthView>;
  readings: Array<ReadingView>;
  leaving: Array<LeavingView>;
  history: Array<DeviceNoteView>;
}

export interface DeviceDrainRequest {
  why?: string;
  dry_run?: boolean;
  force?: boolean;
}

export interface DeviceEntry {
  device: string;
  kind: string;
  name: string;
  node: string;
  workers: Array<DeviceUser>;
  replicas: Array<string>;
  state: "available" | "draining" | "drained" | "failed" | "absent" | "testing";
  out: string;
  out_at_ns: number;
  health: "ok" | "degraded" | "failing" | "failed";
  health_why: string;
  risk: number | null;
  risk_why: string;
  at_risk: boolean;
  testing: string;
  wants_test: string;
}

export interface DeviceFailure {
  why: string;
  dry_run: boolean;
}

export interface DeviceFaultView {
  kind: string;
  blame: string;
  sentence: string;
  advice: string;
}

export interface DeviceMap {
  devices: Array<DeviceEntry>;
  workers: Array<WorkerDevices>;
}

export interface DeviceMarkView {
  device: string;
  dry_run: boolean;
  affected: Array<AffectedJobView>;
}

export interface DeviceNoteView {
  at_ns: number;
  what: string;
  by: string;
  why: string;
}

export interface DevicePolicyBody {
  rules: Record<string, "ignore" | "report" | "drain" | "fail">;
  dry_run: boolean;
  acts_per_hour: number;
  at_risk: "ignore" | "report" | "test" | "drain";
  risk: number;
  return_tested: boolean;
}

export interface DeviceReturn {
  why: string;
  test: boolean;
}

export interface DeviceTestAccepted {
  device: string;
}

export interface DeviceTestRequest {
  why?: string;
}

export interface DeviceUser {
  job: string;
  rank: number;
  replica: string;
  worker: string;
  pid: number;
}

export interface DeviceView {
  device: string;
  kind: string;
  name: string;
}

export interface DifferenceView {
  address: string;
  before: unknown;
  after: unknown;
}

export interface DrainRequest {
  why?: string;
  keep?: boolean;
  force?: boolean;
}

export interface DriverView {
  feature: string;
  value: number;
  weight: number;
  says: string;
}

export interface EntryView {
  version: number;
  step: number;
  values: Record<string, unknown>;
  before: Record<string, unknown>;
  by: string;
  why: string;
  at_ns: number;
  in_force: boolean;
  superseded_by: number | null;
}

export interface EventView {
  seq: number;
  at_ns: number;
  kind: string;
  topics: Array<"job" | "worker" | "incident" | "node" | "device" | "config" | "system">;
  text: string;
  job: string;
  node: string;
  rank: number | null;
  by: string;
  jobs: Array<JobChangeView>;
  incidents: Array<IncidentChangeView>;
}

export interface ExitView {
  rank: number;
  node: string;
  how: string;
  code: number | null;
  signal: number | null;
  source: string;
  at_ns: number;
  steps: number;
  training_step: number | null;
  ran_s: number;
  secondary: boolean;
  after_stop: boolean;
  exception: string;
  message: string;
  traceback: string;
  activity: string;
  log_tail: Array<string>;
  devices: Array<DeviceView>;
}

export interface FactView {
  rank: number;
  says: string;
}

export interface FaultAccepted {
  job: string;
  name: string;
  kind: string;
  ranks: Array<number>;
}

export interface FaultRequest {
  kind: "kill" | "stop" | "contention" | "cpu-quota" | "exit" | "hang" | "gil-hold" | "slow" | "data-slow" | "nan" | "gradient" | "bit-flip" | "mismatch" | "skip" | "deadlock" | "memory" | "disk-full" | "device-error" | "checkpoint-damage" | "slow-link" | "slow-sender" | "slow-receiver" | "partition" | "agent-kill" | "weaver-kill" | "nats-kill";
  ranks?: Array<number>;
  amount?: number | null;
  duration_s?: number;
  at_step?: number | null;
  where?: "step" | "data" | "backward";
  seed?: number;
  peer?: number | null;
}

export interface FindingView {
  ranks: Array<number>;
  node: string;
  confidence: number;
  certain: boolean;
  certainty: string;
  lasting_s: number;
  waiting: Array<number>;
  facts: Array<FactView>;
  inputs: Record<string, number | string | null>;
}

export interface Health {
  status: "ok" | "trouble";
  version: string;
  ready: boolean;
  active: boolean;
  troubles: Array<string>;
  stuck_s: number;
}

export interface HealthAccepted {
  device: string;
  recorded: boolean;
}

export interface HealthRequest {
  level: "ok" | "degraded" | "failing" | "failed";
  source: string;
  why?: string;
  values?: Record<string, number>;
}

export interface HealthView {
  source: string;
  level: "ok" | "degraded" | "failing" | "failed";
  why: string;
  at_ns: number;
}

export interface HistoryView {
  version: number;
  operation: string;
  state: "waiting" | "preparing" | "arming" | "confirmed" | "applied" | "not applied" | "diverged";
  reason: string;
  step: number | null;
  values: Record<string, unknown>;
  changed: Array<DifferenceView>;
  by: string;
  why: string;
  at_ns: number;
  reverts: number | null;
  in_force: boolean;
  superseded_by: number | null;
}

export interface Identity {
  name: string;
  role: "admin" | "operator" | "read";
}

export interface ImportedMetric {
  name: string;
  value: number;
  median: number | null;
  worse: number | null;
  shortfall: number;
}

export interface ImportedTest {
  node: string;
  gpu: number | null;
  passed: boolean;
  why: string;
  measured: number;
  metrics: Array<ImportedMetric>;
}

export interface IncidentChangeView {
  id: string;
  job: string;
  kind: string;
  verdict: string;
  decision: string;
  open: boolean;
  resolution: string;
  action: string;
  outcome: string;
}

export interface IncidentDetail {
  id: string;
  job: string;
  generation: number;
  kind: string;
  verdict: string;
  fault: DeviceFaultView | null;
  decision: string;
  action: string;
  outcome: string;
  reason: string;
  culprit: number | null;
  culprits: Array<number>;
  open: boolean;
  lost_steps: number | null;
  recovery_s: number | null;
  resolution: string;
  ended_by: string;
  confidence: number | null;
  timeline: TimelineView;
  exits: Array<ExitView>;
  finding: FindingView | null;
  witness: WitnessView | null;
  evidence: Array<RankEvidenceView>;
  links: LinkMatrixView | null;
  goodput_before: number | null;
  goodput_after: number | null;
}

export interface IncidentView {
  id: string;
  job: string;
  generation: number;
  kind: string;
  verdict: string;
  fault: DeviceFaultView | null;
  decision: string;
  action: string;
  outcome: string;
  reason: string;
  culprit: number | null;
  culprits: Array<number>;
  open: boolean;
  lost_steps: number | null;
  recovery_s: number | null;
  resolution: string;
  ended_by: string;
  confidence: number | null;
  timeline: TimelineView;
}

export interface JobChangeView {
  id: string;
  state: string;
  reason: string;
  generation: number;
}

export interface JobCreated {
  job: string;
  created: boolean;
}

export interface JobDetail {
  id: string;
  state: string;
  reason: string;
  ended: boolean;
  generation: number;
  restarts: number;
  max_restarts: number;
  fruitless: number;
  max_fruitless: number;
  world_size: number;
  wanted_workers: number;
  standby: number;
  spares: Array<string>;
  running_workers: number;
  step: number;
  step_is_training: boolean;
  total_steps: number | null;
  steps_per_s: number;
  eta_s: number | null;
  goodput: number | null;
  elapsed_s: number;
  submitted_at_ns: number;
  started_at_ns: number;
  ended_at_ns: number;
  by: string;
  program: string;
  incidents: Array<string>;
  open_incidents: Array<string>;
  labels: Record<string, string>;
  max_steps: number | null;
  progress: number | null;
  samples_per_s: number | null;
  last_loss: number | "nan" | "inf" | "-inf" | null;
  replicas: Array<ReplicaView>;
  checkpoint_step: number | null;
  checkpoint_interval: number | null;
  restoring: number | null;
  paused: boolean;
  config_version: number;
  operation: string;
  seq: number;
  spawn: string;
  interpreter: string;
  cwd: string;
  args: Array<string>;
  env_names: Array<string>;
  workers: Array<WorkerView>;
  incident_list: Array<IncidentView>;
}

export interface JobLogs {
  job: string;
  logs: Array<LogView>;
  lines: Array<LogLine>;
}

export interface JobRequest {
  name?: string | null;
  program?: ProgramBody | null;
  script?: string | null;
  module?: string | null;
  command?: Array<string> | null;
  args?: Array<string>;
  cwd?: string | null;
  world_size?: number | null;
  replicas?: number | null;
  workers?: number | null;
  workers_per_node?: number | null;
  nodes?: number | null;
  min_workers?: number | null;
  max_workers?: number | null;
  standby?: number;
  interpreter?: string;
  replica?: ReplicaBody | null;
  spawn?: "warm" | "cold";
  preload?: Array<string>;
  max_restarts?: number | null;
  max_fruitless?: number | null;
  stop_grace_s?: number | null;
  pin_cores?: boolean;
  log_dir?: string | null;
  max_steps?: number | null;
  expected_steps?: number | null;
  limits?: LimitsBody;
  policy?: PolicyBody | null;
  checkpoint?: CheckpointBody;
  env?: Record<string, string>;
  env_withheld?: Array<string>;
  labels?: Record<string, unknown>;
  queue?: boolean | null;
}

export interface JobSeries {
  job: string;
  as_of_ns: number;
  names: Array<string>;
  series: Array<SeriesView>;
}

export interface JobSummary {
  id: string;
  state: string;
  reason: string;
  ended: boolean;
  generation: number;
  restarts: number;
  max_restarts: number;
  fruitless: number;
  max_fruitless: number;
  world_size: number;
  wanted_workers: number;
  standby: number;
  spares: Array<string>;
  running_workers: number;
  step: number;
  step_is_training: boolean;
  total_steps: number | null;
  steps_per_s: number;
  eta_s: number | null;
  goodput: number | null;
  elapsed_s: number;
  submitted_at_ns: number;
  started_at_ns: number;
  ended_at_ns: number;
  by: string;
  program: string;
  incidents: Array<string>;
  open_incidents: Array<string>;
  labels: Record<string, string>;
  max_steps: number | null;
  progress: number | null;
  samples_per_s: number | null;
  last_loss: number | "nan" | "inf" | "-inf" | null;
  replicas: Array<ReplicaView>;
  checkpoint_step: number | null;
  checkpoint_interval: number | null;
  restoring: number | null;
  paused: boolean;
  config_version: number;
  operation: string;
}

export interface JobTelemetry {
  job: string;
  generation: number;
  workers: Array<BoxView>;
}

export interface JobVersions {
  job: string;
  workers: Record<string, number>;
}

export interface JoinRequest {
  token: string;
  node: string;
  key: string;
}

export interface JoinTokenRequest {
  valid_s?: number;
  hosts?: number;
  node?: string;
}

export interface JoinTokenText {
  token: string;
  addresses: Array<string>;
}

export interface JoinView {
  claims: string;
  servers: Array<string>;
  addresses: Array<string>;
  ca: string;
  node: string;
  api_token: string;
}

export interface LeavingView {
  job: string;
  note: string;
  stays: boolean;
}

export interface LimitsBody {
  heartbeat_timeout_s: number | null;
  hang_report_s: number | null;
  hang_act_s: number | null;
}

export interface LinkDelayView {
  sender: number;
  receiver: number;
  delay_s: number;
  transfer_s: number;
}

export interface LinkMatrixView {
  source: "probe" | "training";
  operation: string;
  generation: number;
  at_ns: number;
  at_step: number | null;
  verdict: string;
  delays: Array<LinkDelayView>;
  silent: Record<string, string>;
}

export interface LinksView {
  job: string;
  links: LinkMatrixView;
}

export interface LogEnd {
  state: string;
  unread_ranks: Array<number>;
}

export interface LogLine {
  rank: number;
  at_ns: number;
  text: string;
}

export interface LogLines {
  rank: number;
  text: string;
  lost_bytes: number;
  at_ns: number;
}

export interface LogView {
  rank: number;
  text: string;
  offset: number;
  next_offset: number;
  lost_bytes: number;
  error: string;
}

export interface LoginLink {
  code: string;
  valid_s: number;
  page: boolean;
}

export interface LoginRequest {
  token?: string | null;
  code?: string | null;
}

export interface NodeVersion {
  node: string;
  state: string;
  version: string;
  refused: string;
}

export interface NodeView {
  id: string;
  state: string;
  reason: string;
  hostname: string;
  address: string;
  max_workers: number;
  workers: number;
  drained: string;
  leaving: Array<LeavingView>;
  spare: Record<string, number>;
  devices: Array<DeviceView>;
  seen_s: number | null;
  dropped_messages: number;
  pod: string;
}

export interface OperationAccepted {
  job: string;
  operation: string;
}

export interface OperationView {
  id: string;
  job: string;
  number: number;
  version: number;
  kind: "set" | "pause" | "resume" | "stop" | "checkpoint" | "restore" | "probe";
  state: "waiting" | "preparing" | "arming" | "confirmed" | "applied" | "not applied" | "diverged";
  ended: boolean;
  reason: string;
  values: Record<string, unknown>;
  by: string;
  why: string;
  asked_at_ns: number;
  ended_at_ns: number;
  generation: number;
  at_step: number | null;
  training_step: number | null;
  attempts: number;
  changed: Array<DifferenceView>;
  differing: Record<string, Array<DifferenceView>>;
  trouble: Record<string, string>;
  raised: Array<number>;
  unheard: Array<number>;
  reverts: number | null;
  saved: string;
  unsaved: string;
}

export interface PlaceView {
  address: string;
  value: unknown;
  mode: "hold" | "scale" | null;
  own: unknown;
  version: number | null;
}

export interface PodJoinRequest {
  token: string;
  key: string;
}

export interface PolicyBody {
  dry_run: boolean;
  restarts_per_hour: number;
  rollbacks_per_hour: number;
  pauses_per_hour: number;
  rebalances_per_hour: number;
  leave_outs_per_hour: number;
  take_back_s: number;
  cooldown_s: number;
  skip_batches: number;
  self_fence_s: number | null;
  restart_cost_s: number | null;
  probe_links: boolean;
  probe_every_s: number;
  rules: Record<string, Record<string, "ignore" | "report" | "pause" | "rebalance" | "leave-out" | "restart" | "restart-replica" | "rollback" | "evict" | "promote" | "drain">>;
}

export interface ProbeRequest {
  why?: string;
  within_s?: number;
}

export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  field: string | null;
  fault: string | null;
}

export interface ProgramBody {
  kind: "script" | "module" | "command";
  target: string;
  args: Array<string>;
}

export interface PurgeRequest {
  states?: Array<"completed" | "failed" | "stopped">;
  older_than_s?: number;
  labels?: Record<string, unknown>;
  keep_logs?: boolean;
  keep_checkpoints?: boolean;
  dry_run?: boolean;
}

export interface PurgeResult {
  jobs: Array<string>;
  kept: Record<string, string>;
  dry_run: boolean;
}

export interface RankCostView {
  rank: number;
  node: string;
  role: string;
  steps: number;
  own_s: number;
  peers_s: number | null;
  slowest_s: number | null;
  data_s: number;
  waits_s: number;
  lost_steps_per_s: number;
  steps_per_s: number;
  without_steps_per_s: number;
  lost_share: number;
}

export interface RankEvidenceView {
  rank: number;
  node: string;
  state: string;
  phase: string;
  steps: number;
  doing: string;
  location: string;
  stack: Array<string>;
  gil: string;
  collectives: Array<string>;
  log_tail: Array<string>;
}

export interface RankSeries {
  job: string;
  what: "own" | "wait" | "data" | "phase";
  as_of_ns: number;
  ranks: number;
  ranks_per_row: number;
  width_s: number;
  at_s: Array<number>;
  rows: Array<Array<number | null>>;
  phases: Array<string>;
}

export interface RanksNow {
  job: string;
  generation: number;
  as_of_ns: number;
  nodes: Array<string>;
  phases: Array<string>;
  rank: Array<number>;
  node: Array<number>;
  replica: Array<number>;
  alive: Array<boolean>;
  step: Array<number>;
  phase: Array<number>;
  idle_s: Array<number>;
  own_s: Array<number | null>;
  wait_s: Array<number | null>;
  data_s: Array<number | null>;
  lost_share: Array<number | null>;
}

export interface ReadingView {
  source: string;
  index: number | null;
  values: Record<string, number>;
  states: Array<string>;
  processes: Array<number>;
  error: string;
}

export interface ReasonRequest {
  why?: string;
}

export interface ReplayStepView {
  seq: number;
  at_ns: number;
  kind: string;
  text: string;
  changes: Array<StateChangeView>;
  decisions: Array<DecisionView>;
}

export interface ReplayView {
  incident: string;
  job: string;
  steps: Array<ReplayStepView>;
  left_out: number;
  dropped_before: number;
  checked: number;
  differing: number;
  sentence: string;
}

export interface ReplicaBody {
  set: string;
  index: number;
  size: number;
  min_replicas: number;
}

export interface ReplicaView {
  id: string;
  index: number;
  state: "running" | "starting" | "stopping" | "exited";
  workers: number;
  running_workers: number;
  step: number;
  phase: string;
  last_loss: number | "nan" | "inf" | "-inf" | null;
}

export interface ResetView {
  seq: number;
  reason: string;
}

export interface RestartAccepted {
  job: string;
  generation: number;
}

export interface RestartRequest {
  max_steps?: number | null;
}

export interface RestoreAccepted {
  job: string;
  step: number;
  checkpoint: string;
  operation: string;
}

export interface RestoreRequest {
  step: number;
  config?: "keep" | "revert" | null;
}

export interface RevertRequest {
  version?: number | null;
  why?: string;
  dry_run?: boolean;
}

export interface ScaleAccepted {
  job: string;
  workers: number;
  generation: number;
}

export interface ScaleRequest {
  workers: number;
  dry_run?: boolean;
}

export interface SeriesView {
  name: string;
  width_s: number;
  at_s: Array<number>;
  mean: Array<number | null>;
  low: Array<number | null>;
  high: Array<number | null>;
}

export interface ServiceVersion {
  name: string;
  version: string;
  leads: boolean;
  blocked: string;
}

export interface SettingView {
  name: string;
  type: string;
  allowed: string;
  optional: boolean;
  minimum: number | null;
  maximum: number | null;
  below: number | null;
  choices: Array<string>;
  count: number;
  description: string;
  places: Array<PlaceView>;
}

export interface StateChangeView {
  what: string;
  before: string;
  after: string;
}

export interface StopRequest {
  kill?: boolean;
  grace_s?: number | null;
  signal?: "SIGTERM" | "SIGINT" | "SIGHUP" | "SIGQUIT" | "SIGUSR1" | "SIGUSR2" | null;
}

export interface Stragglers {
  job: string;
  generation: number;
  steps_per_s: number | null;
  stands: string;
  missing: Array<number>;
  ranks: Array<RankCostView>;
}

export interface TestImport {
  source: string;
  results: Array<ImportedTest>;
}

export interface TestImported {
  devices: Array<string>;
  unknown: Array<string>;
}

export interface TestMetricView {
  name: string;
  value: number;
  median: number | null;
  worse: number | null;
  shortfall: number;
}

export interface TestView {
  source: string;
  passed: boolean;
  why: string;
  at_ns: number;
  measured: number;
  metrics: Array<TestMetricView>;
}

export interface TimelineView {
  fault_ns: number;
  first_sign_ns: number;
  detected_ns: number;
  decided_ns: number;
  stopped_ns: number;
  spawned_ns: number;
  restored_ns: number;
  first_step_ns: number;
}

export interface TokenMade {
  name: string;
  role: "admin" | "operator" | "read";
  created_at_ns: number;
  token: string;
}

export interface TokenRequest {
  name: string;
  role?: "admin" | "operator" | "read";
}

export interface TokenView {
  name: string;
  role: "admin" | "operator" | "read";
  created_at_ns: number;
}

export interface UnfinishedLine {
  rank: number;
  text: string;
}

export interface Versions {
  services: Array<ServiceVersion>;
  nodes: Array<NodeVersion>;
  jobs: Array<JobVersions>;
  schemas: Record<string, number>;
}

export interface WitnessView {
  agrees: boolean;
  sentence: string;
  lines: Array<string>;
}

export interface WorkerDevices {
  worker: string;
  job: string;
  rank: number;
  replica: string;
  node: string;
  devices: Array<string>;
}

export interface WorkerView {
  rank: number;
  replica: number;
  node: string;
  local_rank: number;
  pid: number;
  state: string;
  incarnation: number;
  devices: Array<DeviceView>;
  steps: number;
  step_s: number;
  training_step: number | null;
  phase: string;
  phase_s: number;
  idle_s: number;
  data_wait_s: number;
  collectives: number;
  collective: string;
  in_collective_s: number;
  recorder: string;
  metrics: Record<string, number | "nan" | "inf" | "-inf">;
  exit: string;
  blind: string;
  log_lost_lines: number;
  log_lost_bytes: number;
  copy_trouble: string;
}
