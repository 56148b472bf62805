"""What engines run: the program, its rules (in `program.program`), and the lowering of traces to it.

What a collective becomes on its way to the links, and where. A message is a transfer between two members,
at a library's pace where one serves it (`Communication.message`).

    trace node        kind COLLECTIVE, its size and the slot of its group         chakra.trace
        │             routes.geometry: the grid that the members of the group are by position
    Call              what is asked: collective, size, extents of the group       program.plans
        │             Communication.whole: the libraries of the group's kind      program.communication
        ├── one serves it: Libraries.lay_out
        │   LaidOut   its closed form, and the members sorted by node             program.library
        │     │       LaidOut.schedule: the transfers that it stands for          network.collectives
        │     │       analytic.paced: lags; alone, these then last as it says     program.analytic
        │     └────── one Template for the whole; in closed forms (`analytic`) one that only lasts so
        ├── none does: Communication.plan
        │             choosing.Planner by plans.plan, choosing for `auto`; planning where links are dead
    CollectivePlan    chunks that pipeline, each a row of phases                  program.plans
    AxisPhase         one algorithm among the members of one line of the group
        │             Communication.phase: AxisPhase.schedule
    Schedule          transfers among members 0..n-1, each after others           network.collectives
        │             templates.template_of, of all schedules but for sizes once
    Template          the same as engines read it: tasks joined by edges, what    program.program,
        │             waits for a member's arrival, what a member's end awaits    program.templates
        │             lowering: a node's Expansion, one MemberVisit a template    program.builders
    visits            HOLD, MEMBER …, JOIN of the rank, each with slot and template
        │             groups.GroupTable.bind: slots to groups and member numbers  program.groups,
    Group             who meets, and the route of every pair of each template     program.routes
        │             a run begins
    instance          the k-th meeting of a group: a template at work             engines
    transfer          a task whose edges have passed, injected by its member
    hop               a visit of a transfer to one link of its route; one a part
                      where messages go in parts
"""
