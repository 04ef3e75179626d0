"""What is done about a finding.

findings       a finding becomes an incident and, where policy and evidence allow it, a recovery
rules          the job's policy over the defaults, budgets, and the reason; parsing: policy files
decision_facts what a decision rests on: what can be done, what it costs, what was done before
actions        carry out the choice: pause, rollback, restart, move
leave_out      the other replicas of a torchft job train without a slow one; it is tried again and taken back
rebalance      a slow rank takes fewer samples; pace: whether that fits and helps
rollback       go back to before the numbers went wrong
reporting      which findings of one look are worth reporting now
link_probing, link_findings    when links are measured, and what the result means
"""
