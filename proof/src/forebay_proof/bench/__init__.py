"""What a guarantee costs: the same jobs through a plain queue and through one that promises more, in the same run.

    for price in prices(store, [GUARANTEES["order"]], Load(jobs=2_000)):
        print(price.guarantee, price.ratio)

Rounds alternate, so whatever else the machine does falls on both alike; the answer is the median of the ratios, with
their spread. Only ratios of one run mean anything: the numbers of jobs a second are this machine's, at this moment.
"""

from forebay_proof.bench.guarantees import GUARANTEES as GUARANTEES
from forebay_proof.bench.guarantees import PLAIN as PLAIN
from forebay_proof.bench.guarantees import UNLIKE as UNLIKE
from forebay_proof.bench.guarantees import Guarantee as Guarantee
from forebay_proof.bench.prices import Load as Load
from forebay_proof.bench.prices import Price as Price
from forebay_proof.bench.prices import lanes_latency as lanes_latency
from forebay_proof.bench.prices import parked_price as parked_price
from forebay_proof.bench.prices import prices as prices
