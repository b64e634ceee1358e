"""An ensemble whose members stay on their ranks: its predictions are put together, its weights never are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from bayesemble.core.errors import SettingError
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.task.adapters.around_shards import AroundShards
from bayesemble.training.draws import DrawnNetworks
from bayesemble.training.ensemble import Ensemble


def _refused(name: str) -> Any:
    def refuse(self: SpreadEnsemble, *_: Any, **__: Any) -> NoReturn:
        instead = "train with Ranks(gather=True), or be.load the run folder in one process"
        if isinstance(self.task.module, AroundShards):
            instead = "their network is sharded too, and what was trained is in ensemble.state.members of each rank"
        raise SettingError(f"{name} needs all members in one place, but these stayed on their ranks; {instead}")

    return refuse


@dataclass(frozen=True, eq=False, repr=False)
class SpreadEnsemble(Ensemble):
    """The members here, of an ensemble over ranks; all ranks predict the same rows at the same time.

    `predict`, `predict_iter`, `predictions`, `evaluate` and `calibrate` give on each rank what one process would.
    """

    team: Team = ALONE

    def networks(self, num: int | None = None, seed: int = 0) -> DrawnNetworks:
        """The networks here, which predict together with those of the other ranks."""
        found = super().networks(num, seed)
        if num is not None:
            raise SettingError(
                "draws are taken from all members, but these stayed on their ranks: leave num_draws out, or train with "
                "Ranks(gather=True)"
            )
        return replace(found, team=self.team)

    def __repr__(self) -> str:
        return f"{super().__repr__()} on one of {self.team.num_processes} ranks"

    save = _refused("save")
    save_pretrained = _refused("save_pretrained")
    keep = _refused("keep")
    reweight = _refused("reweight")
    draw = _refused("draw")
    as_prior = _refused("as_prior")
    to_arviz = _refused("to_arviz")
    module = _refused("module")
    modules = _refused("modules")
    export = _refused("export")
    to_botorch = _refused("to_botorch")
