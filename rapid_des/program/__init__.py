"""What engines run: the program, its rules (in `program.program`), and the lowering of traces to it.

    traces, machine ──lower──► Program          lowering: ranks with equal tables share one rank program
      node of a rank           expansions       a collective or a message becomes members of templates
      collective               collectives      select an algorithm, cost it, lower it (see the page there)
      slots of a rank          groups, routes   who meets whom, and the route of every pair of a template
      rank program             builders         visits: HOLD, MEMBER …, JOIN, each with slot and template
      links                    services         what each message size takes on each hop

During a run:

    instance          the k-th meeting of a group: a template at work             engines
    transfer          a task whose edges have passed, injected by its member
    hop               a visit of a transfer to one link of its route; one per part
                      where messages travel in parts
"""
