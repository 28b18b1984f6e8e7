"""What the controller decides so that a killed server costs no step: who follows, and who takes a dead one's place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from labkit.elastic.controller.members import JobTerms, Member, MemberTable, Reassign
from labkit.elastic.controller.replica_placement import followers
from labkit.elastic.protocol.commands import Note

JUMP: Final = 16
"""Moves by which a promotion is ahead of all that a server may have announced and the controller has not heard of."""

Follower = tuple[str, int]
"""A server, and the turn in which it was told to follow."""

Following = dict[int, Follower]
"""Who follows each block."""


class Replication(MemberTable):
    """Who follows whom; without `Terms.standby`, nobody.

    A block that is to be followed by somebody else keeps who follows it so far until the new one has it. A turn is a
    number that counts the orders to follow a block, so that what is said of an earlier one is known to be old.
    """

    def __init__(self, terms: JobTerms, *, reassign: Reassign) -> None:
        super().__init__(terms, reassign=reassign)
        self.shadow: Following = {}
        """Those who have the block, and all gradients since."""
        self.coming: Following = {}
        """Those who are about to."""
        self.turns: dict[int, int] = {}
        self._earlier: dict[int, set[Follower]] = {}
        """Those who were about to before somebody else was chosen; they may still be the first."""
        self._heirs: dict[tuple[str, str], tuple[int, set[int]]] = {}
        """Blocks that somebody inherits of whom: how many, and those that it did not say that it has."""

    # --- to follow

    def _follow(self, servers: Sequence[str]) -> None:
        """Let every block be followed, by these servers, with the fewest changes."""
        if not self.terms.standby or self.phase != "training":
            return
        before = {block: name for block, (name, _) in {**self.shadow, **self.coming}.items()}
        wanted = followers(self.owner, self.terms.sizes, servers, before=before)
        new = [block for block, name in wanted.items() if before.get(block) != name]
        for block in new:
            if block in self.coming:
                self._earlier.setdefault(block, set()).add(self.coming[block])
            self.turns[block] = self.turns.get(block, 0) + 1
            self.coming[block] = wanted[block], self.turns[block]
        self._order_following(new)

    def _order_following(self, blocks: Collection[int]) -> None:
        """Tell the owners of blocks who is to follow them; said twice it is done once."""
        by_owner: dict[str, list[list[Any]]] = {}
        for block in blocks:
            by_owner.setdefault(self.owner[block], []).append([block, *self.coming[block]])
        for owner, orders in by_owner.items():
            self._tell(owner, do="follow", blocks=orders)

    def _on_shadows(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Note that a block follows; who followed it so far need not any more."""
        block, one = int(columns["block"]), (member.name, int(columns["turn"]))
        if self.shadow.get(block) == one:
            return
        if self.owner.get(block) == member.name:  # it does not know yet that the one whom it followed is dead
            self._claimed.add(block)
            self._tell(member.name, do="own", blocks=[[block, self.moves[block]]])
        elif one not in self._known(block):
            self._tell(member.name, do="unfollow", blocks=[[block, one[1]]])
        else:
            self._succeed(block, one)
            if len(self.shadow) == len(self.owner) and not self.coming:
                self._out.append(Note("follows", {"blocks": len(self.shadow)}))

    def _succeed(self, block: int, one: Follower) -> None:
        """Let one follow a block, and those before it no more."""
        before = {known for known in self._known(block) if known[1] < one[1]}
        self._remove(block, {one, *before})
        self.shadow[block] = one
        if before:
            self._tell_followers(blocks=[block])
        for name, turn in sorted(before):
            if name in self.members:
                self._tell(name, do="unfollow", blocks=[[block, turn]])

    def _known(self, block: int) -> list[Follower]:
        """Return all who follow a block, are about to, or still may."""
        known = [following[block] for following in (self.shadow, self.coming) if block in following]
        return known + sorted(self._earlier.get(block, ()))

    def _remove(self, block: int, those: Collection[Follower]) -> None:
        for following in (self.shadow, self.coming):
            if following.get(block) in those:
                del following[block]
        self._earlier[block] = self._earlier.get(block, set()) - set(those)
        if block not in self.coming:  # whoever was to come before it may never: nobody may wait for that
            del self._earlier[block]

    def _note_death(self, *, here: Collection[str] | None = None) -> None:
        """Forget what servers that are gone followed: all but those that are here."""
        here = [m.name for m in self.of("server")] if here is None else here
        for block in self.owner:
            self._remove(block, [known for known in self._known(block) if known[0] not in here])
        self._heirs = {pair: blocks for pair, blocks in self._heirs.items() if pair[1] in here}
        self._tell_followers()

    def _disown(self, block: int, name: str) -> None:
        """Note that nobody follows himself: who followed a block, or was about to, owns it now."""
        mine = [known for known in self._known(block) if known[0] == name]
        self._remove(block, mine)
        if mine:
            self._tell_followers(blocks=[block])

    def _unfollow(self) -> None:
        """Forget all: every block is given out anew."""
        for everything in (self.shadow, self.coming, self._earlier, self._heirs):
            everything.clear()

    def _rows(self, blocks: Collection[int] | None = None) -> list[list[Any]]:
        """Return [block, turn, known] of blocks: of all orders up to the turn only these count."""
        if not self.terms.standby:
            return []
        return [[b, self.turns.get(b, 0), self._known(b)] for b in (self.owner if blocks is None else blocks)]

    def _tell_followers(self, *, blocks: Collection[int] | None = None, to: str = "") -> None:
        """Tell a worker, or all, who follows."""
        if not self.terms.standby:
            return
        told = {"do": "followers", "rows": self._rows(blocks), "here": [m.name for m in self.of("server")]}
        if to:
            self._tell(to, **told)
        else:
            self._tell_workers(**told)

    # --- to take the place of

    def _promote(self, gone: Collection[str]) -> dict[int, str] | None:
        """Make those who follow the blocks of servers that are gone their owners; None where a block is lost."""
        lost = [block for block, name in self.owner.items() if name not in self.members or name in gone]
        heirs = {block: self.shadow[block][0] for block in lost if block in self.shadow}
        if not self.terms.standby or len(heirs) < len(lost) or not all(self._is_here(n, gone) for n in heirs.values()):
            return None
        for (dead, heir), blocks in _grouped((self.owner[b], heir, b) for b, heir in heirs.items()).items():
            self._heirs[dead, heir] = len(blocks), set(blocks)
        for block, heir in heirs.items():
            self.owner[block], self.moves[block] = heir, self.moves.get(block, 0) + JUMP
            self._remove(block, self._known(block))
        for heir in sorted(set(heirs.values())):
            self._tell(heir, do="own", blocks=[[b, self.moves[b]] for b, name in heirs.items() if name == heir])
        if heirs:
            self._tell_workers(do="map", era=self.era, map=self._map())
            self._tell_followers(blocks=list(heirs))
        return heirs

    def _is_here(self, name: str, gone: Collection[str]) -> bool:
        return name in self.members and name not in gone and self.members[name].joined

    def _inherited(self, block: int, name: str) -> None:
        """Note that a server owns a block of a dead one; with the last of them, say so."""
        for (dead, heir), (n, left) in list(self._heirs.items()):
            if heir == name and block in left:
                left.discard(block)
                if not left:
                    del self._heirs[dead, heir]
                    self._out.append(Note("promoted", {"from": dead, "to": heir, "blocks": n}))

    # --- a controller after this one

    def _standby_state(self) -> dict[str, Any]:
        return {
            "shadow": [[b, *known] for b, known in self.shadow.items()],
            "coming": [[b, *known] for b, known in self.coming.items()],
            "earlier": [[b, *known] for b, those in self._earlier.items() for known in sorted(those)],
            "turns": sorted(self.turns.items()),
        }

    def _take_over_standby(self, state: Mapping[str, Any]) -> None:
        self.shadow = {block: (name, turn) for block, name, turn in state["shadow"]}
        self.coming = {block: (name, turn) for block, name, turn in state["coming"]}
        for block, name, turn in state["earlier"]:
            self._earlier.setdefault(block, set()).add((name, turn))
        self.turns = dict(state["turns"])


def _grouped(rows: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of each pair of names."""
    found: dict[tuple[str, str], list[int]] = {}
    for first, second, number in rows:
        found.setdefault((first, second), []).append(number)
    return found
