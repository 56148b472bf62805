"""Replacing lonely collectives in a program, and checking afterwards that it was right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rapid_des.modes.shortcuts.alone import Ints, Run, alone, done_after
from rapid_des.modes.shortcuts.lonely import agreed, links_of, lonely_groups, places_of, plain_templates
from rapid_des.program.program import Program, RankBinding, RankProgram, Records


@dataclass(frozen=True)
class Memo:
    """One collective alone: when members are done after the start, and what its links did."""

    template: int
    """The linkless template that stands for it."""
    done: Ints
    link_bytes: Ints
    link_busy: Ints
    link_wait: Ints
    hops: int
    sent: int
    ties: int


@dataclass(frozen=True)
class Use:
    """A group's use of a template: its memo, and its links in the memo's order."""

    group: int
    memo: Memo
    links: Ints


@dataclass(frozen=True)
class Shortened:
    """A program with its lonely collectives replaced, and what they stand for."""

    program: Program
    uses: tuple[Use, ...]

    def broken(self, records: Records) -> frozenset[int]:
        """Return the groups of which some collective's members did not arrive as assumed."""
        bad = set()
        memos = {use.memo.template for use in self.uses}
        for binding, offset, table, visits in self._visits(memos):
            start, finish, met = (
                column[offset + visits] for column in (records.start, records.finish, records.met)
            )
            groups = binding.groups[table.slot[visits]]
            late = start != met
            order = np.lexsort((start, groups))
            same = groups[order][1:] == groups[order][:-1]
            overlaps = np.zeros(len(visits), np.bool_)
            overlaps[order[1:]] = same & (start[order][1:] < finish[order][:-1])
            bad.update(groups[late | overlaps].tolist())
        return frozenset(bad)

    def filled(self, records: Records) -> Records:
        """Return the records with what the replaced collectives did to their links."""
        counts = self._counts()
        sums = [records.link_bytes.copy(), records.link_busy.copy(), records.link_wait.copy()]
        hops, sent, ties = records.hops, records.sent, records.ties
        for use in self.uses:
            times = counts.get((use.group, use.memo.template), 0)
            label = self.program.groups[use.group].label
            for total, own in zip(
                sums, (use.memo.link_bytes, use.memo.link_busy, use.memo.link_wait), strict=True
            ):
                total[use.links, label] += times * own
            hops, sent, ties = (
                hops + times * use.memo.hops, sent + times * use.memo.sent, ties + times * use.memo.ties
            )  # fmt: skip
        received = records.received + sent - records.sent
        return replace(
            records,
            link_bytes=sums[0],
            link_busy=sums[1],
            link_wait=sums[2],
            hops=hops,
            sent=sent,
            received=received,
            ties=ties,
        )

    def _visits(self, templates: set[int]) -> Iterator[tuple[RankBinding, int, RankProgram, Ints]]:
        wanted = np.array(sorted(templates), np.int64)
        chosen = [np.flatnonzero(np.isin(table.template, wanted)) for table in self.program.programs]
        for binding, offset in zip(self.program.bindings, self.program.visits().tolist(), strict=False):
            yield binding, offset, self.program.programs[binding.program], chosen[binding.program]

    def _counts(self) -> dict[tuple[int, int], int]:
        """Return how often each group runs each memo: the visits of its member 0."""
        counts: dict[tuple[int, int], int] = {}
        for binding, _, table, visits in self._visits({use.memo.template for use in self.uses}):
            for visit in visits[binding.members[table.slot[visits]] == 0].tolist():
                key = (int(binding.groups[table.slot[visit]]), int(table.template[visit]))
                counts[key] = counts.get(key, 0) + 1
        return counts


def play(program: Program, run: Run, run_alone: Run) -> tuple[Records, int]:
    """Run a program with its lonely collectives from memory; also return how many hops those made.

    Where one was not alone in time, its group is simulated in full in a second run; if that is not enough,
    everything is. `run_alone` plays a small program and records every hop.
    """
    barred: frozenset[int] = frozenset()
    for _ in range(2):
        short = shorten(program, run_alone, barred=barred)
        if short is None:
            break
        records = run(short.program)
        broken = short.broken(records)
        if not broken:
            whole = short.filled(records)
            return whole, whole.hops - records.hops
        barred |= broken
    return run(program), 0


def shorten(program: Program, run: Run, *, barred: frozenset[int] = frozenset()) -> Shortened | None:
    """Return the program with its lonely collectives replaced, but for those of `barred` groups.

    `run` plays a small program. None if there is nothing to replace.
    """
    if program.link_timetables or program.stream_timetables or program.closures or program.fluid:
        return None
    if any(table.link_priority.any() for table in program.programs):
        return None
    builder = _Builder(program, run)
    replaceable = {
        index
        for index, group in enumerate(program.groups)
        if index not in barred and group.routes and group.routes.keys() <= builder.eligible
    }
    if not replaceable:
        return None
    places = places_of(program)
    lonely = [group for group in lonely_groups(program) if group in replaceable and len(places[group])]
    memos = {group: builder.memos(group) for group in lonely}
    forms = {
        group: tuple(sorted((old, use.memo.template) for old, use in found.items()))
        for group, found in memos.items()
        if found
    }
    kept = agreed(places, forms)
    uses = tuple(use for group in kept for use in memos[group].values())
    return Shortened(builder.program(kept, memos), uses) if uses else None


class _Builder:
    """Runs collectives alone and builds the replaced program."""

    def __init__(self, program: Program, run: Run) -> None:
        self.whole = program
        self.run = run
        self.templates = list(program.templates)
        self.known: dict[tuple[int, bytes], Memo | None] = {}
        self.eligible = plain_templates(program)

    def memos(self, index: int) -> dict[int, Use]:
        """Return the uses of a group by template; empty if a collective of it can not be remembered."""
        group, result = self.whole.groups[index], {}
        for template, routes in group.routes.items():
            links, ends = links_of(self.whole, routes.astype(np.int64))
            distinct, first, names = np.unique(links, return_index=True, return_inverse=True)
            number = np.empty(len(distinct), np.int64)
            number[np.argsort(first, kind="stable")] = np.arange(len(distinct))
            canonical = number[names.reshape(-1)]
            classes = self.whole.route_class[self._hops(routes.astype(np.int64))].astype(np.int64)
            key = (template, b"|".join(part.tobytes() for part in (canonical, ends, classes)))
            if key not in self.known:
                self.known[key] = self._remember(template, canonical, ends, classes)
            memo = self.known[key]
            if memo is None:
                return {}
            result[template] = Use(index, memo, distinct[np.argsort(number)])
        return result

    def _hops(self, routes: Ints) -> Ints:
        starts = self.whole.route_starts
        lengths = starts[routes + 1] - starts[routes]
        ends = np.cumsum(lengths)
        places: Ints = np.arange(int(lengths.sum())) + np.repeat(starts[routes] - (ends - lengths), lengths)
        return places

    def _remember(self, template: int, links: Ints, ends: Ints, classes: Ints) -> Memo | None:
        records = alone(self.whole, template, self.run, (links, ends, classes))
        if records is None:
            return None
        self.templates.append(done_after(self.whole.templates[template], records.finish))
        return Memo(
            template=len(self.templates) - 1,
            done=records.finish,
            link_bytes=records.link_bytes[:, 0],
            link_busy=records.link_busy[:, 0],
            link_wait=records.link_wait[:, 0],
            hops=records.hops,
            sent=records.sent,
            ties=records.ties,
        )

    def program(self, kept: frozenset[int], memos: dict[int, dict[int, Use]]) -> Program:
        """Return the program in which the kept groups run linkless templates."""
        groups, columns = list(self.whole.groups), [table.template.copy() for table in self.whole.programs]
        for group in kept:
            new = {use.memo.template: np.zeros(0, np.int32) for use in memos[group].values()}
            groups[group] = replace(groups[group], routes=new)
        for binding in self.whole.bindings:
            table, column = self.whole.programs[binding.program], columns[binding.program]
            for slot, group in enumerate(binding.groups.tolist()):
                for old, use in memos[group].items() if group in kept else ():
                    column[(table.slot == slot) & (table.template == old)] = use.memo.template
        programs = tuple(
            replace(table, template=column)
            for table, column in zip(self.whole.programs, columns, strict=True)
        )
        return replace(self.whole, groups=tuple(groups), programs=programs, templates=tuple(self.templates))
