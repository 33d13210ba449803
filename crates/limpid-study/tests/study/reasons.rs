//! How often ways to explain a word name its true cause: on prompts from the built-in stories, whose grammar knows why
//! each word is there.

use limpid::reason::{Reason, ReasonEvent, ReasonQuestion};
use limpid::trace::path::{PathQuestion, largest, steps};
use limpid::trace::sweep::SweepMetric;
use limpid::trace::{Keep, Trace};
use limpid::train::Recipe;
use limpid::{Lm, Training};
use limpid_data::stories::{Cause, Stories};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A prompt that ends before a word with a known cause, which the model predicts.
struct Prompt {
    kind: &'static str,
    question: ReasonQuestion,
    /// Which tokens tell the cause.
    causes: Vec<bool>,
}

/// The kind of a cause, as the table has them.
fn kind_of(cause: &Cause) -> &'static str {
    match &cause.kind[..] {
        "he" | "him" | "his" | "self" => "pronoun",
        "it" | "they" | "was" | "is" | "one" | "where_is" => "number",
        "+named" | "+name" | "+boy" | "+girl" => "name",
        kind if kind.starts_with('+') => "thing named again",
        _ => "what suits a thing",
    }
}

/// By how much the model prefers the word, at least, in logits.
const AHEAD: f64 = 2.0;

/// The bytes of each token of a text.
fn ranges(lm: &Lm, ids: &[u32]) -> Vec<Range<usize>> {
    let mut at = 0;
    let mut range = |id: &u32| {
        let from = at;
        at += lm.tokenizer().unwrap().piece_bytes(*id).unwrap().len();
        from..at
    };
    ids.iter().map(&mut range).collect()
}

fn prompt(lm: &Lm, text: &str, cause: &Cause) -> Option<Prompt> {
    let tokenizer = lm.tokenizer().unwrap();
    let ids = lm.encode(&text[..cause.at]).ok()?;
    let whole = lm.encode(&text[..cause.at + cause.word.len()]).ok()?;
    let answer = *whole.get(ids.len()).filter(|_| whole.starts_with(&ids) && ids.len() < 100)?;
    let run = lm.trace_ids(&ids, Keep::default()).ok()?;
    let row = ids.len() - 1;
    let top = run.predictions(row..row + 1, 4096).ok()?.remove(0).top;
    let place = |id: u32| top.iter().find(|next| next.id == id).map(|next| f64::from(next.logit));
    let firsts = cause.instead.iter().filter_map(|word| tokenizer.encode_ordinary(word).ok()?.first().copied());
    let foil = firsts.filter(|id| *id != answer).max_by(|a, b| place(*a).partial_cmp(&place(*b)).unwrap())?;
    if top[0].id != answer || place(answer)? - place(foil)? < AHEAD {
        return None;
    }
    let tells = |range: &Range<usize>| cause.because.iter().any(|own| own.start < range.end && range.start < own.end);
    let causes = ranges(lm, &ids).iter().map(tells).collect();
    let question = ReasonQuestion { ids, row, answer, foil, corrupt: None };
    Some(Prompt { kind: kind_of(cause), question, causes })
}

/// Prompts of stories of a seed, so many of each kind, one of a story.
fn prompts(lm: &Lm, seed: u64, most: usize) -> Vec<Prompt> {
    let (stories, mut all) = (Stories::new(seed), BTreeMap::<&str, Vec<Prompt>>::new());
    for n in 0..4000 {
        let (story, causes) = stories.causes(n);
        // not always the first of a story
        let from = n as usize * 7 % causes.len().max(1);
        let causes = causes[from..].iter().filter(|cause| all.get(kind_of(cause)).is_none_or(|own| own.len() < most));
        if let Some(found) = causes.take(3).find_map(|cause| prompt(lm, &story.text, cause)) {
            all.entry(found.kind).or_default().push(found);
        }
        if all.len() == 5 && all.values().all(|own| own.len() == most) {
            break;
        }
    }
    all.into_values().flatten().collect()
}

/// The token where the path along the largest parts ends.
fn end_of_path(trace: &Trace, question: &ReasonQuestion) -> usize {
    let asked = PathQuestion { row: question.row, target: question.answer, foil: Some(question.foil) };
    let hops = largest(trace, asked).unwrap();
    steps(trace, asked, &hops, 4).unwrap().last().unwrap().position
}

/// The token whose embedding, times the gradient there, adds the most.
fn gradient_times_input(lm: &Lm, trace: &Trace, question: &ReasonQuestion) -> usize {
    let metric = (SweepMetric::of(question.answer, Some(question.foil)), question.row as i64);
    let slopes = lm.metric_gradients(&question.ids, metric, &["hook_embed".into()]).unwrap().remove(0).values;
    let values = trace.get("hook_embed").unwrap().values;
    let wide = values.len() / question.ids.len();
    let product =
        |at: usize| -> f64 { (at * wide..(at + 1) * wide).map(|i| f64::from(slopes[i]) * f64::from(values[i])).sum() };
    greatest((0..question.ids.len()).map(product))
}

/// The token with the greatest weight when attention is followed through all layers, half of each stream staying as it
/// is (Abnar and Zuidema 2020).
fn rollout(lm: &Lm, trace: &Trace, question: &ReasonQuestion) -> usize {
    let n = question.ids.len();
    let mut from = vec![0.0; n];
    from[question.row] = 1.0;
    for layer in (0..lm.config().n_layer).rev() {
        let pattern = trace.get(&format!("blocks.{layer}.attn.hook_pattern")).unwrap().values;
        let heads = pattern.len() / (n * n);
        let mut next = vec![0.0; n];
        for (query, weight) in from.iter().enumerate() {
            next[query] += 0.5 * weight;
            for key in 0..n {
                let mean: f64 =
                    (0..heads).map(|head| f64::from(pattern[(head * n + query) * n + key])).sum::<f64>() / heads as f64;
                next[key] += 0.5 * weight * mean;
            }
        }
        from = next;
    }
    from[question.row] = 0.0; // the token itself always has half
    greatest(from)
}

fn greatest(values: impl IntoIterator<Item = f64>) -> usize {
    values.into_iter().enumerate().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).unwrap().0
}

/// What was found for prompts of one kind: how many there are, then those where each way names the cause, and those
/// where the last names nothing else.
#[derive(Default)]
struct Recall {
    prompts: usize,
    right: [usize; 5],
    alone: usize,
}

fn named(reason: &Reason) -> Vec<usize> {
    reason.changes.iter().flat_map(|change| change.places.iter().copied()).collect()
}

/// Counts each way on the prompts.
fn recall(lm: &Lm, prompts: &[Prompt]) -> BTreeMap<&'static str, Recall> {
    let mut all = BTreeMap::<&str, Recall>::new();
    for Prompt { kind, question, causes } in prompts {
        let trace = lm.trace_ids(&question.ids, Keep::default()).unwrap();
        let mut guessed = vec![];
        let reason = lm
            .reason(question, &Arc::default(), &mut |event| {
                if let ReasonEvent::Guess(change, _) = event {
                    guessed.clone_from(&change.places);
                }
                true
            })
            .unwrap();
        let changed = named(&reason);
        let is_right = |all: &[usize]| all.iter().any(|at| causes[*at]);
        let ways = [
            is_right(&[end_of_path(&trace, question)]),
            is_right(&[rollout(lm, &trace, question)]),
            is_right(&[gradient_times_input(lm, &trace, question)]),
            is_right(&guessed),
            reason.turned() && is_right(&changed),
        ];
        let row = all.entry(kind).or_default();
        row.prompts += 1;
        row.right.iter_mut().zip(ways).for_each(|(n, right)| *n += usize::from(right));
        let alone = reason.turned() && reason.changes.iter().all(|change| is_right(&change.places));
        row.alone += usize::from(alone);
    }
    all
}

/// The default model, trained with a seed.
fn trained(seed: u64) -> Lm {
    let recipe = Recipe { seed, ..Recipe::preset("nano").unwrap() };
    Training::preset("nano").unwrap().recipe(recipe).run().unwrap().lm
}

/// The words that are changed, and the first sentence, for a prompt and two tokens.
fn why(lm: &Lm, prompt: &str, [answer, foil]: [&str; 2]) -> (Vec<String>, Reason) {
    let tokenizer = lm.tokenizer().unwrap();
    let [answer, foil] = [answer, foil].map(|text| tokenizer.token(text).unwrap());
    let ids = lm.encode(prompt).unwrap();
    let question = ReasonQuestion { row: ids.len() - 1, ids, answer, foil, corrupt: None };
    let reason = lm.reason(&question, &Arc::default(), &mut |_| true).unwrap();
    (reason.changes.iter().map(|change| tokenizer.piece(change.from).unwrap()).collect(), reason)
}

#[test]
#[ignore = "gate"]
fn a_pronoun_is_there_because_of_a_name_and_not_because_of_the_word_before_it() {
    let lm = trained(1337);
    for (child, name, pronouns) in [("girl", "Anna", [" her", " his"]), ("boy", "Tom", [" his", " her"])] {
        let they = if child == "girl" { "she" } else { "he" };
        let prompt = format!("Once there was a little {child} called {name}. One day, {they} lost");
        let (words, reason) = why(&lm, &prompt, pronouns);
        assert!(reason.turned() && words.contains(&format!(" {name}")), "{words:?}");
        assert!(words.iter().all(|word| [child, name, "he", "she"].contains(&word.trim())), "{words:?}");
        let sentence = reason.sentence(&|id| lm.tokenizer().unwrap().piece(id).unwrap());
        assert!(sentence.starts_with(&format!("{} is ahead of {} by ", pronouns[0], pronouns[1])), "{sentence}");
        assert!(reason.parts[0].restored > 0.9, "{:?}", reason.parts[0]);
    }
    // the grammar's word, where the path along what was written ends elsewhere
    let (mut prompts_seen, mut right, mut path_wrong) = (0, 0, 0);
    for prompt in prompts(&lm, 41, 12) {
        let trace = lm.trace_ids(&prompt.question.ids, Keep::default()).unwrap();
        let reason = lm.reason(&prompt.question, &Arc::default(), &mut |_| true).unwrap();
        let is_right = reason.turned() && named(&reason).iter().any(|at| prompt.causes[*at]);
        prompts_seen += 1;
        right += usize::from(is_right);
        path_wrong += usize::from(is_right && !prompt.causes[end_of_path(&trace, &prompt.question)]);
    }
    let counts = format!("{right} of {prompts_seen} right, {path_wrong} of them against the path");
    assert!(prompts_seen == 60 && right * 10 >= prompts_seen * 9 && path_wrong >= 10, "{counts}");
}

mod measures {
    use super::*;

    /// The table of docs/inside.md. `MODELS=DIR,DIR,DIR` names models that were trained already; without it this trains
    /// three default ones, with the seeds 11, 12 and 13.
    #[test]
    #[ignore = "prints figures"]
    fn table() {
        let models: Vec<Lm> = match std::env::var("MODELS") {
            Ok(models) => models.split(',').map(|model| Lm::open(model).unwrap()).collect(),
            Err(_) => (11..14).map(trained).collect(),
        };
        let mut all = BTreeMap::<&str, Recall>::new();
        for (n, lm) in models.iter().enumerate() {
            for (kind, one) in recall(lm, &prompts(lm, 500 + n as u64, 20)) {
                let row = all.entry(kind).or_default();
                row.prompts += one.prompts;
                row.right.iter_mut().zip(one.right).for_each(|(sum, n)| *sum += n);
                row.alone += one.alone;
            }
        }
        let ways = "path | attention rollout | gradient times input | first guess | reason | and nothing else";
        println!("| prompts that end before | prompts | {ways} |");
        println!("|---|---|---|---|---|---|---|---|");
        let mut sum = Recall::default();
        for one in all.values() {
            sum.prompts += one.prompts;
            sum.right.iter_mut().zip(one.right).for_each(|(sum, n)| *sum += n);
            sum.alone += one.alone;
        }
        for (kind, Recall { prompts, right, alone }) in all.into_iter().chain([("all", sum)]) {
            let share = |n: usize| format!("{:.1} %", 100.0 * n as f64 / prompts as f64);
            let right: Vec<String> = right.into_iter().map(share).collect();
            println!("| {kind} | {prompts} | {} | {} |", right.join(" | "), share(alone));
        }
    }
}
