from random import Random
from gang_play import ACTIONS, GangPlay
import pytest

@pytest.mark.parametrize("seed", range(30))
def test_x(kit, seed):
    random, play = Random(seed), GangPlay(kit)
    log=[]
    for i in range(120):
        a=(random.choice(ACTIONS), random.randrange(6), random.randrange(6))
        log.append(a)
        try:
            play.act(*a)
        except Exception:
            print(log[-5:])
            raise
        if i%10==0 or i == 119:
            r = play.restarted().finish()
    l = play.finish()
    assert l == r
