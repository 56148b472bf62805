"""From a collective of a trace to transfers on links, in three steps: select, cost, lower.

    CollectiveCall    what a trace asks for: collective, size, extents of the group       plans
      │
      │  SELECT       which algorithm serves it
      ├── a communication library, if one of the group's kind does: `Libraries.lay_out`   library
      └── else the machine's own algorithms: `Planner.plan`                               select
            │         as the machine file states (`plan`)                                 plans
            │         or `auto`: the fastest of those that do the collective              candidates
            │
      │  COST         what a choice takes, in picoseconds
      ├── estimated at zero load, with the busiest link                                   estimates
      ├── in closed form, or simulated alone by an engine: exact where nothing waits      alone
      └── simulated message by message, with all groups that work at the same time        simulate
            │
      │  LOWER        into templates: transfers among the members of a group
      ├── CollectivePlan: chunks that pipeline, each a row of phases; an AxisPhase is
      │   one algorithm among the members of one line of the group                        plans
      ├── AxisPhase.schedule: transfers among members 0..n-1     network.collectives.schedule
      ├── Template: the same as engines read it, tasks joined by edges                    templates
      ├── paced by a library: lags, so that alone it takes as long as its closed form     pacing
      ├── cut to the ranks of one replica where these stand for every replica             replicas
      └── numbered, one template per distinct call: `Communication`                       lower

A message is a transfer between two members, at the pace of a library where one serves it
(`Communication.message`). Groups and routes are bound to templates later, in `program.groups`.
"""
