//! The cost of training one model with several processes: memory, bytes, and seconds on a network between machines.
//! This is a model on paper, for `limpid plan --ranks`; `team` does what is counted here. A step takes
//!
//!   seconds(n) = gradients / n + update share(n) + network(n) - hidden(n)
//!   network(n) = 2 (alpha log2 n + (n - 1) share(n) 4 bytes / beta)
//!
//! where share(n) is what the process with the most parameters updates (`shards`). The gradients are sent and the
//! parameters come back, which is twice the same amount. Gradients are sent while the backward pass of a process's last
//! micro-batch still runs, except for the late ones, which are final when it ends (the embedding's). Parameters are
//! received while the forward pass of its first micro-batch runs, except for the same ones, which it reads first.
//! hidden(n) is what fits into these passes. A backward pass takes twice as long as a forward pass.

use super::shards::{BLOCK, Uses};
use super::team::AWAY;
use limpid_core::config::axis;
use limpid_core::numeric::math;
use limpid_core::optimizer::{NORM_PART, ParamGroup};

axis! {
    /// A network between machines: Ethernet of so many bits a second.
    Network, "network" {
        /// 1 Gbit/s.
        Gigabit1 = "1g",
        /// 10 Gbit/s.
        Gigabit10 = "10g",
        /// 100 Gbit/s.
        Gigabit100 = "100g",
    }
}

/// Seconds until a message arrives; a collective call sends log2 n messages one after the other.
const ALPHA: f64 = 50e-6;

/// The gain in speed at which twice as many processes are worthwhile.
const WORTH: f64 = 1.3;

impl Network {
    /// Gbit per second.
    pub fn gigabits(self) -> f64 {
        match self {
            Network::Gigabit1 => 1.0,
            Network::Gigabit10 => 10.0,
            Network::Gigabit100 => 100.0,
        }
    }

    /// Bytes per second to and from a machine, as programs see them: 94 % of the bits carry data.
    pub fn bytes_per_second(self) -> f64 {
        0.117e9 * self.gigabits()
    }
}

/// The work of a step that processes share, as one process would do it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedStep {
    /// Seconds of all micro-batches.
    pub gradients: f64,
    /// Seconds of the update.
    pub update: f64,
    /// How many micro-batches there are.
    pub micros: usize,
    /// Parameters that learn.
    pub learning: usize,
    /// Those whose gradients are final only when the backward pass ends.
    pub late: usize,
    /// Parameters of the largest unit, which one process updates alone.
    pub unit: usize,
}

/// What a step costs each of several processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessCost {
    /// Micro-batches.
    pub micros: usize,
    /// Parameters that the process with the most of them updates.
    pub share: usize,
    /// Bytes that it sends in a step; it receives as many.
    pub sent: u64,
    /// Bytes of buffers for sending and receiving.
    pub buffers: u64,
    /// Seconds that it computes in a step.
    pub compute: f64,
    /// Seconds on the network.
    pub network: f64,
    /// Those of them during which the process computes.
    pub hidden: f64,
}

impl ProcessCost {
    /// Seconds of a step.
    pub fn seconds(&self) -> f64 {
        self.compute + self.network - self.hidden
    }
}

impl SharedStep {
    /// A step that updates `groups`, of a model with these `uses`.
    pub fn new(groups: &[ParamGroup], uses: &Uses, micros: usize, (gradients, update): (f64, f64)) -> SharedStep {
        let unit =
            |group: &ParamGroup| group.range.len().min(if group.matrix.is_some() { usize::MAX } else { NORM_PART });
        let learning = groups.iter().map(|group| group.range.len()).sum();
        SharedStep {
            gradients,
            update,
            micros,
            learning,
            late: uses.late(),
            unit: groups.iter().map(unit).max().unwrap_or(0),
        }
    }

    /// The step of each of `n` processes. They fit ([`super::check_micros`]).
    pub fn among(&self, n: usize, network: Network) -> ProcessCost {
        let share = self.learning.div_ceil(n).max(self.unit);
        let out = ((n - 1) * share * 4) as u64;
        // one process has everything at hand
        let buffers = if n > 1 { (2 * 4 * (n * share).min(AWAY * BLOCK)) as u64 } else { 0 };
        let part = share as f64 / self.learning.max(1) as f64;
        let way = ALPHA * math::log2_f64(n as f64) + out as f64 / network.bytes_per_second();
        let soon = 1.0 - self.late as f64 / self.learning.max(1) as f64;
        let pass = self.gradients / self.micros.max(1) as f64 / 3.0;
        let hidden = |passes: f64| (way * soon).min(passes * pass);
        ProcessCost {
            micros: self.micros / n,
            share,
            sent: 2 * out,
            buffers,
            compute: self.gradients / n as f64 + self.update * part,
            network: 2.0 * way,
            hidden: hidden(2.0) + hidden(1.0),
        }
    }

    /// The speed of `n` processes relative to one, divided by n.
    pub fn efficiency(&self, n: usize, network: Network) -> f64 {
        self.among(1, network).seconds() / self.among(n, network).seconds() / n as f64
    }

    /// The number of processes beyond which doubling it gains less than a factor of 1.3 in speed; at most the number of
    /// micro-batches.
    pub fn worth(&self, network: Network) -> usize {
        let seconds = |n| self.among(n, network).seconds();
        let all = if self.micros.is_power_of_two() { self.micros } else { 1 };
        let mut doubles = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| 2 * n <= all);
        doubles.find(|n| seconds(*n) < WORTH * seconds(2 * n)).unwrap_or(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_core::config::Config;
    use limpid_core::model::{Mode, Model};

    fn near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 1e-9, "{found}, not {wanted}");
    }

    /// GPT-2 with 124,439,808 parameters, 16 micro-batches of 1 s each and an update of 0.1 s, by hand. Its embeddings
    /// are (50,257 + 1,024) 768 = 39,383,808 of them.
    #[test]
    fn the_cost_is_that_of_a_hand_computation() {
        let config = Config::preset("gpt2").unwrap();
        let model = Model::new(&config, Mode::Train { batch: 1, context: 64 }).unwrap();
        let groups = [(0..124_318_464), (124_318_464..124_439_808)];
        let groups = groups.map(|range| ParamGroup { range, decay: 0.0, matrix: None });
        let gpt2 = SharedStep::new(&groups, &Uses::new(&model), 16, (16.0, 0.1));
        assert_eq!((gpt2.learning, gpt2.late, gpt2.unit), (124_439_808, 39_383_808, 65_536));

        // an eighth is 15,554,976 parameters, 62,219,904 bytes; seven of them go out: 435,539,328 bytes
        let eight = gpt2.among(8, Network::Gigabit1);
        assert_eq!((eight.micros, eight.share, eight.sent), (2, 15_554_976, 871_078_656));
        assert_eq!(eight.buffers, 67_108_864, "eight blocks of 4 MiB out, and eight in");
        near(eight.compute, 2.0125); // 2 micro-batches, and an eighth of the update
        // 435,539,328 / 117,000,000 = 3.722558358974359, and 3 x 50 us, both twice
        near(eight.network, 7.445_416_717_948_718);
        // a backward of 2/3 s and a forward of 1/3 s
        near(eight.hidden, 1.0);
        // 16.1 / (2.0125 + 6.4454167...) / 8 = 0.2379...
        near(gpt2.efficiency(8, Network::Gigabit1), 16.1 / 8.457_916_717_948_718 / 8.0);
        // a tenth: 0.372405835897436 a way, of which 85,056,000 / 124,439,808 = 0.683511172... may hide: 0.254544...
        // fits into both
        let ten = gpt2.among(8, Network::Gigabit10);
        near(ten.network, 0.744_811_671_794_871_8);
        near(ten.hidden, 0.744_811_671_794_871_8 * 85_056_000.0 / 124_439_808.0);
        near(gpt2.among(8, Network::Gigabit100).network, 0.074_751_167_179_487_18);

        // one process sends nothing
        let one = gpt2.among(1, Network::Gigabit1);
        assert_eq!((one.sent, one.buffers, one.network, one.hidden, one.micros), (0, 0, 0.0, 0.0, 16));
        near(one.compute, 16.1);

        // seconds on 1 Gbit/s: 16.1, 11.3047, 9.4074, 8.4579: two processes are 1.42 times one, four 1.20 times two
        assert_eq!(gpt2.worth(Network::Gigabit1), 2);
        // on 100 Gbit/s they double to the end: 16 processes take 1.03 s
        assert_eq!(gpt2.worth(Network::Gigabit100), 16);
    }

    /// What one process must update alone does not become less.
    #[test]
    fn a_matrix_is_not_divided() {
        let groups = [ParamGroup { range: 0..300_000, decay: 0.1, matrix: Some((500, 600)) }];
        let muon = SharedStep::new(&groups, &Uses::default(), 8, (8.0, 1.0));
        let four = muon.among(4, Network::Gigabit10);
        assert_eq!((four.share, four.sent, four.buffers), (300_000, 7_200_000, 9_600_000));
        near(four.compute, 3.0);
        // no number of processes shares out three micro-batches
        assert_eq!(SharedStep { micros: 3, ..muon }.worth(Network::Gigabit100), 1);
    }
}
