//! The chooser on made-up times: how near to the best it ends, how soon it follows changes, and what its trials cost.

use super::{ThreadChooser, ThreadTimes};
use crate::numeric::random;

/// Seconds of a step by the number of threads, of a made-up machine.
type Machine<'a> = &'a dyn Fn(usize) -> f64;
type Owned = Box<dyn Fn(usize) -> f64>;

/// What some steps came to.
struct Outcome {
    /// Seconds of all steps.
    seconds: f64,
    /// Seconds that the same steps would take with the fastest number.
    least: f64,
    /// Steps with each number of threads, from 1.
    steps: Vec<usize>,
}

/// Runs so many steps. Their times are `noise` (a standard deviation, as a share) apart, and each twentieth or so is
/// two to three times as long.
fn run(chooser: &mut ThreadChooser, machine: Machine, steps: usize, (seed, noise): (u64, f64)) -> Outcome {
    let best = best(chooser.most(), machine);
    let mut outcome = Outcome { seconds: 0.0, least: 0.0, steps: vec![0; chooser.most()] };
    for step in 0..steps as u64 {
        let slowed = noise > 0.0 && random::uniform(seed, 1, step) < 0.05;
        let outlier = if slowed { 2.0 + random::uniform(seed, 2, step) } else { 1.0 };
        let factor = (1.0 + noise * random::normal(seed, 3, step)).max(0.5) * outlier;
        let threads = chooser.threads();
        chooser.report(64.0, machine(threads) * factor);
        outcome.seconds += machine(threads) * factor;
        outcome.least += best * factor;
        outcome.steps[threads - 1] += 1;
    }
    outcome
}

fn best(most: usize, machine: Machine) -> f64 {
    (1..=most).map(machine).fold(f64::MAX, f64::min)
}

/// By which share the chosen number is slower than the best.
fn loss(chooser: &ThreadChooser, machine: Machine) -> f64 {
    machine(chooser.chosen()) / best(chooser.most(), machine) - 1.0
}

/// Work that divides well; it costs `wait` seconds for each thread that it waits for.
fn divided(work: f64, wait: f64) -> impl Fn(usize) -> f64 {
    move |threads| work / threads as f64 + wait * threads as f64
}

/// Whole sequences: more threads than sequences wait for each other only.
fn sequences(n: usize) -> impl Fn(usize) -> f64 {
    move |threads| 0.01 * n.div_ceil(threads) as f64 + 0.001 * threads as f64
}

/// So many cores are free: threads beyond them take turns, and the others wait for them.
fn shared(free: usize) -> impl Fn(usize) -> f64 {
    move |threads| 0.2 / threads.min(free) as f64 * (1.0 + 0.4 * threads.saturating_sub(free) as f64)
}

/// The same, but twice as many threads as free cores take only half as long again.
fn stolen(free: usize) -> impl Fn(usize) -> f64 {
    move |threads| 0.2 / threads.min(free) as f64 * (0.5 + 0.5 * threads.max(free) as f64 / free as f64)
}

const NUMBERS: [usize; 10] = [3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

#[test]
fn it_ends_near_the_best_within_sixty_steps() {
    for most in NUMBERS {
        for optimum in 1..=most {
            // the sum is least at the square root of the ratio
            let machines: [(&str, usize, Owned); 3] = [
                ("divided", most, Box::new(divided(1.0, (optimum as f64).powi(-2)))),
                ("shared", most, Box::new(shared(optimum))),
                ("sequences", optimum, Box::new(sequences(optimum))),
            ];
            for (name, tasks, machine) in &machines {
                let mut chooser = ThreadChooser::new(most, *tasks);
                run(&mut chooser, machine, 60, (0, 0.0));
                let loss = loss(&chooser, machine);
                assert!(chooser.is_settled(), "{name}, {most} threads, best {optimum}: still searching");
                let chosen = chooser.chosen();
                assert!(loss < 0.05, "{name}, {most} threads, best {optimum}: {chosen} are {loss:.3} slower");
            }
        }
    }
}

#[test]
fn noise_leads_it_astray_by_five_hundredths_at_most() {
    for most in NUMBERS {
        for seed in 0..20 {
            for optimum in [1.0, 0.2 * most as f64, 0.5 * most as f64, most as f64] {
                let machine = divided(1.0, optimum.powi(-2));
                let mut chooser = ThreadChooser::new(most, most);
                run(&mut chooser, &machine, 60, (seed, 0.03));
                let loss = loss(&chooser, &machine);
                let chosen = chooser.chosen();
                assert!(loss < 0.05, "{most} threads, best {optimum}, seed {seed}: {chosen} are {loss:.3} slower");
            }
        }
    }
}

#[test]
fn it_follows_other_programs_that_come_and_go() {
    for most in NUMBERS {
        for seed in 0..20 {
            let (alone, beside) = (stolen(most), stolen(most.div_ceil(2)));
            let mut chooser = ThreadChooser::new(most, most);
            for (machine, when) in [(&alone, "alone"), (&beside, "they came"), (&alone, "they went")] {
                run(&mut chooser, machine, 3000, (seed, 0.03));
                let loss = loss(&chooser, machine);
                let chosen = chooser.chosen();
                assert!(loss < 0.05, "{most} threads, seed {seed}, {when}: {chosen} are {loss:.3} slower");
            }
        }
    }
}

#[test]
fn looks_take_a_hundredth_of_the_time() {
    for most in NUMBERS {
        for optimum in [1, most.div_ceil(3), most] {
            let machine = shared(optimum);
            let mut chooser = ThreadChooser::new(most, most);
            run(&mut chooser, &machine, 60, (0, 0.0));
            assert_eq!(chooser.chosen(), optimum);
            let chosen = machine(optimum);
            for steps in [100, 1000, 10_000] {
                let run = run(&mut chooser, &machine, steps, (0, 0.0));
                // one look may lose more than it was thought to
                let once = 3.0 * (machine(most).max(machine(1)) - chosen);
                let lost = run.seconds - run.least;
                assert!(lost < 0.0101 * run.seconds + once, "{most} threads, {steps} steps: {lost} s lost");
                assert!(steps < 10_000 || lost > 0.0, "{most} threads: it never looks");
            }
        }
    }
}

#[test]
fn on_two_cores_no_run_is_slower_than_with_two_threads_by_a_hundredth() {
    let time = |threads: usize| [0.02, 0.01][threads - 1];
    for steps in [1, 10, 100, 299, 301, 400, 1000, 5000] {
        let mut chooser = ThreadChooser::new(2, 2);
        let run = run(&mut chooser, &time, steps, (0, 0.0));
        let two = steps as f64 * time(2);
        assert!(run.seconds <= 1.01 * two, "{steps} steps: {} s instead of {two}", run.seconds);
        assert!(steps < 400 || run.steps[0] > 0, "{steps} steps: one thread was never tried");
    }
    // where two threads share one core, one is enough
    let mut chooser = ThreadChooser::new(2, 2);
    run(&mut chooser, &|threads| [0.01, 0.012][threads - 1], 1000, (0, 0.0));
    assert_eq!(chooser.chosen(), 1);
}

#[test]
fn runs_of_microseconds_are_measured_many_at_a_time() {
    // single runs vary by their whole time
    let machine = divided(1e-4, 1e-4 / 16.0);
    for seed in 0..20 {
        let mut chooser = ThreadChooser::new(16, 16);
        for step in 0..4000 {
            let factor = 2.0 * random::uniform(seed, 4, step);
            chooser.report(1.0, machine(chooser.threads()) * factor);
        }
        let loss = loss(&chooser, &machine);
        assert!(chooser.is_settled() && loss < 0.1, "seed {seed}: {} are {loss:.3} slower", chooser.chosen());
    }
}

#[test]
fn any_report_leaves_a_number_that_is_allowed() {
    for most in [0, 1, 2, 3, 16] {
        for seed in 0..20 {
            let mut chooser = ThreadChooser::new(most, seed as usize);
            for step in 0..2000 {
                let odd = [0.0, f64::NAN, f64::INFINITY, -1.0, 1e300, f64::MIN_POSITIVE];
                let pick = |site| random::below(seed, site, step, 12) as usize;
                let [work, seconds] = [5, 6].map(|site| odd.get(pick(site)).copied().unwrap_or(pick(site) as f64));
                chooser.report(work, seconds);
                assert!((1..=most.max(1)).contains(&chooser.threads()));
                assert!((1..=most.max(1)).contains(&chooser.chosen()));
            }
        }
    }
}

#[test]
fn it_says_what_each_number_gave() {
    let machine = divided(1.0, 1.0 / 16.0);
    let mut chooser = ThreadChooser::new(16, 16);
    let before = chooser.times(64.0);
    assert_eq!((before.to_string().as_str(), chooser.is_settled()), ("16 of 16 threads", false));
    run(&mut chooser, &machine, 60, (0, 0.0));
    let after = chooser.times(64.0);
    assert_eq!((after.chosen, after.most, chooser.is_settled()), (4, 16, true));
    assert!([2, 4, 16].iter().all(|threads| after.seconds.iter().any(|(tried, _)| tried == threads)));
    for (threads, seconds) in after.seconds {
        assert!((seconds / machine(threads) - 1.0).abs() < 1e-9, "{threads} threads");
    }
    let told = ThreadTimes { chosen: 2, most: 4, seconds: vec![(2, 0.00024), (4, 0.0123)] };
    assert_eq!(told.to_string(), "2 of 4 threads (2: 0.240 ms, 4: 12.3 ms)");
}
