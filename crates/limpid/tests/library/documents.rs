//! Documents in one window: where they do not see each other, nothing passes between them, forward or backward; and
//! of a conversation only the answers are learned.

use limpid::backend::{Backend, Cpu, Reference};
use limpid::config::{Config, Mask, Positions};
use limpid::data::Tokens;
use limpid::data::chat::{self, MARKERS};
use limpid::model::{Mode, Model};
use limpid::numeric::random;
use limpid::ops::{Batch, IGNORE};
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid::train::evaluate::{self, Score};
use limpid::train::{Batches, Documents, Objective, Recipe, Trainer, WindowShape, Windows, count_targets, preflight};

const V: usize = 40;
const CONTEXT: usize = 24;
const APART: Documents = Documents { whole: true, cross: false };

fn tiny() -> Config {
    Config {
        vocab_size: V,
        context_length: CONTEXT,
        d_model: 24,
        n_head: 3,
        n_layer: 2,
        d_ff: 40,
        tied_head: false,
        ..Config::preset("nano").unwrap()
    }
}

fn start(model: &Model, backend: &mut dyn Backend) {
    for param in &model.params {
        let draw = |i| 0.3 * random::normal(2, random::site(&param.name), i) as f32;
        backend.write(param.region, &(0..param.region.len() as u64).map(draw).collect::<Vec<f32>>()).unwrap();
    }
}

/// Documents of these lengths; document `d` has tokens of its own.
fn documents(lengths: &[usize]) -> Tokens {
    let ends: Vec<usize> = lengths
        .iter()
        .scan(0, |at, n| {
            *at += n;
            Some(*at)
        })
        .collect();
    let own = |d: usize, n: usize| (0..n as u64).map(move |i| (5 * d) as u32 + random::below(3, d as u64, i, 5) as u32);
    let ids = lengths.iter().enumerate().flat_map(|(d, n)| own(d, *n)).collect();
    Tokens::of_documents(ids, ends, None)
}

fn one(tokens: &Tokens, objective: Objective, documents: Documents) -> Batch {
    let mut batch = Batch::default();
    Batches::new(tokens, WindowShape { context: CONTEXT, objective, documents }, 1, 1).unwrap().fill(0, 0, &mut batch);
    batch
}

#[test]
fn a_window_of_documents_gives_their_own_logits_to_the_bit() {
    let tokens = documents(&[7, 1, 11, 5]);
    for (mask, positions) in [(Mask::Causal, Positions::Learned), (Mask::Bidirectional, Positions::Rotary)] {
        let config = Config { mask, positions, ..tiny() };
        let model = Model::new(&config, Mode::Inspect { batch: 4, context: CONTEXT }).unwrap();
        let mut cpu = Cpu::new(&model, 2);
        start(&model, &mut cpu);
        let mut logits = |batch: &Batch| -> Vec<u32> {
            cpu.feed(batch).unwrap();
            cpu.forward(model.ops()).unwrap();
            let region = model.logits().unwrap().for_batch(batch);
            cpu.read(region).unwrap().into_iter().map(f32::to_bits).collect()
        };
        let packed = one(&tokens, Objective::NextToken, APART);
        assert_eq!((packed.spans.len(), packed.tokens.len()), (4, CONTEXT));
        let own = (0..4).flat_map(|d| {
            let mut ids = vec![];
            tokens.copy(tokens.document(d), &mut ids);
            let n = ids.len();
            logits(&Batch::of_sequences(ids, vec![IGNORE; n], n))
        });
        let own: Vec<u32> = own.collect();
        let packed = logits(&packed);
        assert_eq!(packed, own);
        let crossing = logits(&one(&tokens, Objective::NextToken, Documents { cross: true, ..APART }));
        let first = if mask == Mask::Causal { 7 * V } else { 0 };
        assert_eq!(crossing[..first], packed[..first], "the first document sees nothing before it");
        assert!(crossing[first..].chunks(V).zip(packed[first..].chunks(V)).all(|(a, b)| a != b));
    }
}

/// Gradients of all parameters, in f64 and in f32.
fn gradients(config: &Config, batch: &Batch) -> [Vec<(String, Vec<f64>)>; 2] {
    let model = Model::new(config, Mode::Train { batch: 1, context: CONTEXT }).unwrap();
    let (mut reference, mut cpu) = (Reference::new(&model), Cpu::new(&model, 2));
    let run = |backend: &mut dyn Backend| {
        start(&model, backend);
        backend.feed(batch).unwrap();
        backend.forward(model.body()).unwrap();
        backend.backward(model.back()).unwrap();
    };
    run(&mut reference);
    run(&mut cpu);
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
    [
        model.params.iter().map(|p| (p.name.clone(), reference.exact(p.region.grad()).to_vec())).collect(),
        model.params.iter().map(|p| (p.name.clone(), wide(cpu.read(p.region.grad()).unwrap()))).collect(),
    ]
}

/// Only the second of three documents is predicted: without attention across boundaries the others' embeddings have no
/// gradient at all, with it those before it do.
#[test]
fn no_gradient_leaks_into_another_document() {
    let plain = documents(&[6, 9, 10]);
    let ids: Vec<u32> = (0..plain.len()).map(|i| plain.id(i)).collect();
    let counted = (0..ids.len()).map(|i| (6..15).contains(&i)).collect();
    let tokens = Tokens::of_documents(ids, vec![6, 15, 25], Some(counted));
    let learns = |gradients: &[(String, Vec<f64>)], document: usize| {
        let (name, table) = gradients.iter().find(|(_, g)| g.len() == V * 24).unwrap();
        assert!(name.contains("embed"), "{name}");
        table[5 * document * 24..5 * (document + 1) * 24].iter().any(|g| *g != 0.0)
    };
    for whole in [true, false] {
        for g in gradients(&tiny(), &one(&tokens, Objective::NextToken, Documents { whole, cross: false })) {
            assert_eq!([0, 1, 2].map(|d| learns(&g, d)), [false, true, false], "apart, whole {whole}");
        }
    }
    for g in gradients(&tiny(), &one(&tokens, Objective::NextToken, Documents { whole: true, cross: true })) {
        assert_eq!([0, 1, 2].map(|d| learns(&g, d)), [true, true, false], "across, later ones unseen");
    }
    // masked tokens, seeing both ways: a loss on the second alone
    let plain = documents(&[6, 9, 8]);
    let objective = Objective::Masked { mask: 39, vocab_size: V, segments: false };
    let config = Config { mask: Mask::Bidirectional, ..tiny() };
    for (cross, want) in [(false, [false, true, false]), (true, [true; 3])] {
        let mut batch = one(&plain, objective, Documents { whole: true, cross });
        batch.tokens = one(&plain, Objective::NextToken, APART).tokens;
        batch.targets = (0..batch.tokens.len()).map(|i| if (6..15).contains(&i) { 1 } else { IGNORE }).collect();
        for g in gradients(&config, &batch) {
            assert_eq!([0, 1, 2].map(|d| learns(&g, d)), want, "both ways, across {cross}");
        }
    }
}

/// A conversation whose prompt, answer and end are one token each.
fn talk() -> (Tokenizer, Tokens) {
    let line = r#"{"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}]}"#;
    let chat = chat::read(line, false).unwrap();
    let tokenizer = Tokenizer::train(TokenizerKind::Char, "abcdefghij\n", Order::Sorted, &MARKERS).unwrap();
    let tokens = chat::tokens(&chat.conversations, &tokenizer).unwrap();
    (tokenizer, tokens)
}

/// Changing what follows the answer changes no gradient, changing a target of the answer or its end does. The gradient
/// is the sum of those of the answer's rows, each alone: the prompt has no part in it.
#[test]
fn only_answers_are_learned() {
    let (tokenizer, tokens) = talk();
    let ids: Vec<u32> = (0..tokens.len()).map(|i| tokens.id(i)).collect();
    let all = "<|user|>\nabc\n<|assistant|>\nde<|end|>\n";
    assert_eq!(ids, tokenizer.encode(all).unwrap());
    let answer: Vec<usize> = (0..ids.len()).filter(|i| tokens.counted(*i)).collect();
    let first = tokenizer.encode("<|user|>\nabc\n<|assistant|>\n").unwrap().len();
    assert_eq!(answer, [first, first + 1, first + 2], "d, e and <|end|>");

    let batch = one(&tokens, Objective::NextToken, APART);
    let of = |batch: &Batch| gradients(&tiny(), batch);
    let learned = of(&batch);
    for at in 1..ids.len() {
        assert_eq!(batch.targets[at - 1], if answer.contains(&at) { ids[at] } else { IGNORE });
    }
    for at in &answer {
        let mut other = batch.clone();
        other.targets[at - 1] = 1;
        assert!(of(&other) != learned, "target {at}");
    }
    // through the data: another last token, which is not counted, is no other gradient; another end is
    let stream = |at: usize| {
        let mut ids = ids.clone();
        ids[at] = (ids[at] + 1) % 15;
        let counted = (0..ids.len()).map(|i| tokens.counted(i)).collect();
        let end = ids.len();
        of(&one(&Tokens::of_documents(ids, vec![end], Some(counted)), Objective::NextToken, APART))
    };
    let last = ids.len() - 1;
    assert!(stream(last) == learned && stream(last - 1) != learned && stream(first) != learned);

    // the mean of the answer's rows, each alone
    let mut sum: Vec<f64> = vec![];
    for at in &answer {
        let mut alone = batch.clone();
        alone.targets.iter_mut().enumerate().filter(|(row, _)| row + 1 != *at).for_each(|(_, t)| *t = IGNORE);
        let [exact, _] = of(&alone);
        let part: Vec<f64> = exact.into_iter().flat_map(|(_, g)| g).collect();
        sum.resize(part.len(), 0.0);
        sum.iter_mut().zip(part).for_each(|(s, g)| *s += g);
    }
    let whole = learned[0].iter().flat_map(|(_, g)| g);
    assert!(whole.zip(&sum).all(|(g, s)| (g - s).abs() < 1e-12), "batch weight is {}", batch.weight);
}

/// A window without anything to predict has no gradient; a step of such windows has no loss and changes nothing, and
/// where the text has no other, the check before the first step says so.
#[test]
fn a_window_without_an_answer_divides_by_nothing() {
    let ids: Vec<u32> = (0..50).map(|i| i % 30).collect();
    let tokens = Tokens::of_documents(ids, vec![20, 50], Some(vec![false; 50]));
    let batch = one(&tokens, Objective::NextToken, APART);
    assert_eq!((count_targets(&batch), batch.weight), (0, 1.0));
    for g in gradients(&tiny(), &batch) {
        assert!(g.iter().flat_map(|(_, g)| g).all(|g| *g == 0.0));
    }
    let recipe = Recipe { batch_size: 2, weight_decay: 0.5, ema: 0.9, ..Recipe::default() };
    let model = Model::new(&tiny(), Mode::Train { batch: 2, context: CONTEXT }).unwrap();
    let mut trainer = Trainer::new(model.clone(), Box::new(Cpu::new(&model, 2)), recipe).unwrap();
    let weights =
        |t: &Trainer| t.model.params.iter().flat_map(|p| t.backend.read(p.region).unwrap()).collect::<Vec<f32>>();
    let batches =
        Batches::new(&tokens, WindowShape { documents: APART, ..WindowShape::next_token(CONTEXT) }, 2, 1).unwrap();
    assert!(preflight(&mut trainer, &batches).unwrap_err().to_string().contains("no window of the training text"));
    // also after a step that moved the weights, with its momentum and average
    let learns = documents(&[20, 30]);
    let learning =
        Batches::new(&learns, WindowShape { documents: APART, ..WindowShape::next_token(CONTEXT) }, 2, 1).unwrap();
    for done in 0..4 {
        let before = weights(&trainer);
        let step = trainer.step(&batches).unwrap();
        assert_eq!((step.step, step.loss, step.norm, step.tokens > 0), (2 * done + 1, None, None, true));
        assert_eq!(weights(&trainer), before);
        let step = trainer.step(&learning).unwrap();
        assert!(step.step == 2 * done + 2 && step.loss > Some(0.0) && step.norm > Some(0.0), "{step:?}");
        assert_ne!(weights(&trainer), before);
    }
}

/// A text of which nothing is predicted has no loss, also beside one that has.
#[test]
fn a_text_without_an_answer_has_no_loss() {
    let model = Model::new(&tiny(), Mode::Score { batch: 2, context: CONTEXT }).unwrap();
    let mut cpu = Cpu::new(&model, 2);
    start(&model, &mut cpu);
    let ids: Vec<u32> = (0..50).map(|i| i % 30).collect();
    for answers in [0, 1, 50] {
        let counted = (0..50).map(|i| i >= 50 - answers).collect();
        let tokens = Tokens::of_documents(ids.clone(), vec![20, 50], Some(counted));
        let windows =
            Windows::new("text", &tokens, WindowShape { documents: APART, ..WindowShape::next_token(CONTEXT) })
                .unwrap();
        let score = evaluate::score(&model, &mut cpu, &windows, 2, &mut |_| true).unwrap();
        assert_eq!(score.tokens, answers.min(48), "the first token of a document is not predicted");
        assert_eq!(score.loss().is_some(), answers > 0);
        assert_eq!(score.perplexity(), score.loss().map(f64::exp));
        assert_eq!(score.bits_per_byte(50).is_some(), answers > 0);
    }
}

/// Evaluating whole documents that do not see each other is evaluating each alone; a mask leaves out the rest.
#[test]
fn evaluation_respects_boundaries_and_masks() {
    let plain = documents(&[7, 2, 9, 24, 3, 12, 1]);
    let ids: Vec<u32> = (0..plain.len()).map(|i| plain.id(i)).collect();
    let ends: Vec<usize> = (0..plain.documents()).map(|d| plain.document(d).end).collect();
    let mask: Vec<bool> = (0..ids.len()).map(|i| i % 3 != 0).collect();
    let model = Model::new(&tiny(), Mode::Score { batch: 2, context: CONTEXT }).unwrap();
    let mut cpu = Cpu::new(&model, 2);
    start(&model, &mut cpu);
    for mask in [None, Some(mask)] {
        let tokens = Tokens::of_documents(ids.clone(), ends.clone(), mask.clone());
        let windows =
            Windows::new("text", &tokens, WindowShape { documents: APART, ..WindowShape::next_token(CONTEXT) })
                .unwrap();
        let together = evaluate::score(&model, &mut cpu, &windows, 2, &mut |_| true).unwrap();
        let mut alone = Score::default();
        for document in (0..tokens.documents()).map(|d| tokens.document(d)).filter(|d| d.len() > 1) {
            let own = mask.as_ref().map(|mask| mask[document.clone()].to_vec());
            let own = Tokens::of_documents(ids[document.clone()].to_vec(), vec![document.len()], own);
            Windows::new("text", &own, WindowShape::next_token(CONTEXT)).unwrap().each(1, |batch| {
                cpu.feed(batch).unwrap();
                cpu.forward(model.ops()).unwrap();
                alone.add(&cpu.read(model.losses().unwrap().for_batch(batch)).unwrap(), &batch.targets);
            });
        }
        assert_eq!(together, alone);
        let begins = |i: usize| tokens.document(tokens.document_at(i)).start == i;
        assert_eq!(alone.tokens, (0..tokens.len()).filter(|i| !begins(*i) && tokens.counted(*i)).count());
    }
}

/// Threads share documents of unequal length; the bits do not tell.
#[test]
fn any_number_of_threads_trains_the_same() {
    let tokens = documents(&[22, 7, 4, 1, 10, 13, 4, 16]);
    let train = |threads: usize| {
        let recipe = Recipe { batch_size: 5, ..Recipe::default() };
        let model = Model::new(&tiny(), Mode::Train { batch: 5, context: CONTEXT }).unwrap();
        let mut trainer = Trainer::new(model.clone(), Box::new(Cpu::new(&model, threads)), recipe).unwrap();
        let batches =
            Batches::new(&tokens, WindowShape { documents: APART, ..WindowShape::next_token(CONTEXT) }, 5, 1).unwrap();
        let losses: Vec<u64> = (0..6).map(|_| trainer.step(&batches).unwrap().loss.unwrap().to_bits()).collect();
        let weights = model.params.iter().flat_map(|p| trainer.backend.read(p.region).unwrap()).map(f32::to_bits);
        (losses, weights.collect::<Vec<u32>>())
    };
    let one = train(1);
    assert!([2, 3, 5].into_iter().all(|threads| train(threads) == one));
}
