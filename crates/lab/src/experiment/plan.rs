//! Points and steps: what is measured, and in which order.
//!
//! A plan is a function of the experiment and its seed. It is written once, and a resumed run goes by what was written.

use super::spec::{MAX_POINTS, MAX_STEPS, OneOrMany, Order, Spec, SpecError, applies};
use super::template::fill;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One combination of parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Stable name, from the parameters and the commands: another command is another point.
    pub id: String,
    /// Parameters with their values, by name.
    pub params: Vec<(String, String)>,
    /// The parameters that tell points apart, as text. Lists that step together are named by their first.
    pub label: String,
}

impl Point {
    /// Value of a parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }
}

/// What a step is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// Recorded, counted nowhere.
    Warmup,
    /// A measurement.
    Measure,
    /// A measured once more in the same round: the noise floor of an A/B.
    Again,
}

/// One measurement to be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Step {
    /// The point's id.
    pub point: String,
    /// Which repeat, from 1.
    pub rep: u32,
    /// What for.
    pub kind: StepKind,
}

impl Step {
    /// Name of its files.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            StepKind::Warmup => "w",
            StepKind::Measure => "r",
            StepKind::Again => "a",
        };
        format!("{}-{kind}{}", self.point, self.rep)
    }
}

/// All points, and all steps in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The experiment, with the profile laid over it.
    pub spec: Spec,
    /// The points.
    pub points: Vec<Point>,
    /// The steps.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Of an experiment; refused when a command names what does not exist, or the points are too many.
    pub fn of(spec: &Spec) -> Result<Plan, SpecError> {
        let points = points(spec)?;
        for p in &points {
            for c in spec.commands() {
                for word in &c.command {
                    check_names(spec, p, word)?;
                }
            }
            let roles: Vec<&str> = spec
                .roles
                .iter()
                .filter(|r| applies(&r.when, &p.params))
                .map(|r| r.name.as_str())
                .collect();
            if roles.is_empty() {
                return Err(SpecError::Wrong(format!(
                    "no role is for the point {}; exclude it, or give it one",
                    p.label
                )));
            }
            if roles.iter().collect::<BTreeSet<_>>().len() < roles.len() {
                return Err(SpecError::Wrong(format!(
                    "two roles of the point {} have the same name",
                    p.label
                )));
            }
        }
        if count(spec, &points) > MAX_STEPS {
            let again = match points.iter().filter(|p| is_again(spec, p)).count() {
                0 => String::new(),
                again => format!(", and {again} of them twice in each repeat"),
            };
            return Err(SpecError::Wrong(format!(
                "{} points, each in {} rounds{again}: more than {MAX_STEPS} steps; take values out, or measure each less often",
                points.len(),
                spec.run.repeats + spec.run.warmup
            )));
        }
        let steps = steps(spec, &points);
        Ok(Plan {
            spec: spec.clone(),
            points,
            steps,
        })
    }

    /// The point with this id.
    pub fn point(&self, id: &str) -> Option<&Point> {
        self.points.iter().find(|p| p.id == id)
    }
}

/// Fills a text with a point's parameters (whose values may hold names of the rig themselves) and with what else is known.
pub(crate) fn fill_point(
    point: &Point,
    text: &str,
    known: &[&str],
    other: &dyn Fn(&str) -> Option<String>,
) -> Result<String, SpecError> {
    let names: Vec<&str> = point
        .params
        .iter()
        .map(|(n, _)| n.as_str())
        .chain(known.iter().copied())
        .collect();
    fill(text, &names, &|name| match point.param(name) {
        Some(v) => fill(v, known, &|inner| Ok(other(inner))).map(Some),
        None => Ok(other(name)),
    })
}

/// Whether a word of a command is `{NAME.library}` alone, by itself or as the value of a parameter: that is several arguments.
pub(crate) fn is_several(point: &Point, word: &str) -> bool {
    let inside = |w| -> Option<&str> { str::strip_prefix(w, "{")?.strip_suffix('}') };
    let value = inside(word).and_then(|name| point.param(name));
    let name = inside(value.unwrap_or(word));
    name.is_some_and(|n| n.ends_with(".library") && !n.contains(['{', '}']))
}

fn check_names(spec: &Spec, point: &Point, word: &str) -> Result<(), SpecError> {
    let systems = spec
        .rig
        .as_ref()
        .map(super::rig_spec::system_names)
        .unwrap_or_default();
    let mut known: Vec<&str> = systems.iter().map(String::as_str).collect();
    known.extend(["rep", "scratch", "coral"]);
    // Without a rig the mounts come from the command line, and are checked there.
    let any = spec.rig.is_none();
    fill_point(point, word, &known, &|name| {
        let system = name.split(['.', '/']).next().unwrap_or(name);
        (known.contains(&name) || known.contains(&system) || any && name.contains("fs"))
            .then(|| "x".to_owned())
    })
    .map(|_| ())
    // One that is near another is misspelt.
    .map_err(|e| match any && e.to_string().contains("; known: ") {
        true => SpecError::Wrong(format!(
            "{e}; without a [rig], names of file systems have 'fs' in them, as {{fs1}} for --mount fs1=DIR"
        )),
        false => e,
    })
}

/// Every combination: lists that step together are one dimension, each other list its own.
fn points(spec: &Spec) -> Result<Vec<Point>, SpecError> {
    let zipped: BTreeSet<&String> = spec.zip.iter().flatten().collect();
    let mut dimensions: Vec<Vec<&String>> = spec
        .zip
        .iter()
        .filter(|g| !g.is_empty())
        .map(|g| g.iter().collect())
        .collect();
    dimensions.extend(
        spec.parameters
            .keys()
            .filter(|k| !zipped.contains(k))
            .map(|k| vec![k]),
    );
    dimensions.sort();
    let mut combinations: Vec<Vec<(String, String)>> = vec![vec![]];
    for names in &dimensions {
        let length = spec.parameters[names[0]].0.len();
        if combinations.len() * length > MAX_POINTS {
            return Err(SpecError::Wrong(format!(
                "more than {MAX_POINTS} points: take values out"
            )));
        }
        combinations = combinations
            .iter()
            .flat_map(|c| {
                (0..length).map(move |i| {
                    let mut c = c.clone();
                    c.extend(
                        names
                            .iter()
                            .map(|n| ((*n).clone(), spec.parameters[*n].0[i].clone())),
                    );
                    c
                })
            })
            .collect();
    }
    let shown: BTreeSet<&String> = dimensions
        .iter()
        .map(|d| d[0])
        .filter(|n| spec.parameters[*n].0.len() > 1)
        .collect();
    let out: Vec<Point> = combinations
        .into_iter()
        .filter(|c| !spec.exclude.iter().any(|e| !e.is_empty() && applies(e, c)))
        .map(|params| point(spec, params, &shown))
        .collect();
    if out.is_empty() {
        return Err(SpecError::Wrong("every point is excluded".into()));
    }
    Ok(out)
}

fn point(spec: &Spec, mut params: Vec<(String, String)>, shown: &BTreeSet<&String>) -> Point {
    params.sort();
    let label: Vec<String> = params
        .iter()
        .filter(|(n, _)| shown.contains(n))
        .map(|(n, v)| format!("{n}={v}"))
        .collect();
    let mut hashed = format!("{params:?}");
    for c in spec.commands() {
        hashed += &format!("{:?}", c.command);
    }
    Point {
        id: format!("{:016x}", fnv1a(hashed.as_bytes())),
        label: if label.is_empty() {
            spec.name.clone()
        } else {
            label.join(" ")
        },
        params,
    }
}

/// FNV-1a, 64 bits: the same in every build, unlike the standard library's hasher.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// How many [`steps`] there are.
fn count(spec: &Spec, points: &[Point]) -> usize {
    let again = points.iter().filter(|p| is_again(spec, p)).count();
    let (repeats, warmup) = (spec.run.repeats as usize, spec.run.warmup as usize);
    (points.len() + again) * repeats + points.len() * warmup
}

fn steps(spec: &Spec, points: &[Point]) -> Vec<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(spec.run.seed);
    let mut out = vec![];
    let round = |rep: u32, kind: StepKind, rng: &mut ChaCha8Rng| {
        let mut round: Vec<Step> = points
            .iter()
            .flat_map(|p| {
                let step = |kind| Step {
                    point: p.id.clone(),
                    rep,
                    kind,
                };
                let again = kind == StepKind::Measure && is_again(spec, p);
                std::iter::once(step(kind)).chain(again.then(|| step(StepKind::Again)))
            })
            .collect();
        if spec.run.order == Order::Interleaved {
            round.shuffle(rng);
        }
        round
    };
    for rep in 1..=spec.run.warmup {
        out.extend(round(rep, StepKind::Warmup, &mut rng));
    }
    let mut measured = vec![];
    for rep in 1..=spec.run.repeats {
        measured.extend(round(rep, StepKind::Measure, &mut rng));
    }
    if spec.run.order == Order::Blocked {
        let place = |id: &str| points.iter().position(|p| p.id == id);
        measured.sort_by_key(|s| (place(&s.point), s.rep, s.kind));
    }
    out.extend(measured);
    out
}

/// Whether a point is on the A side of an A/B whose noise floor is measured: each repeat measures it twice.
fn is_again(spec: &Spec, p: &Point) -> bool {
    spec.ab.as_ref().is_some_and(|ab| {
        let OneOrMany(values) = &spec.parameters[&ab.parameter];
        ab.noise_floor && p.param(&ab.parameter) == Some(&values[0])
    })
}

#[cfg(test)]
mod tests {
    use super::super::spec::load;
    use super::*;

    #[test]
    fn more_steps_than_can_be_made_are_refused() {
        let values: Vec<String> = (0..1001).map(|i| i.to_string()).collect();
        let text = format!(
            "name='x'\n[parameters]\nn=[{}]\n[run]\nrepeats=1000\n[[roles]]\nname='r'\ncommand=['true']\n",
            values.join(",")
        );
        let why = Plan::of(&load(&text, None).unwrap())
            .unwrap_err()
            .to_string();
        let told = "1001 points, each in 1000 rounds: more than 1000000 steps";
        assert!(why.starts_with(told), "{why}");
        let ab = text.replace("[run]", "b=['p','q']\n[ab]\nparameter='b'\n[run]\nwarmup=2");
        let why = Plan::of(&load(&ab, None).unwrap()).unwrap_err();
        let told = "2002 points, each in 1002 rounds, and 1001 of them twice in each repeat: ";
        assert!(why.to_string().starts_with(told), "{why}");
    }

    #[test]
    fn steps_are_counted_as_they_are_made() {
        for (root, run) in [
            ("", ""),
            ("", "warmup=2"),
            ("[ab]\nparameter='b'", "warmup=2"),
            ("[ab]\nparameter='b'\nnoise_floor=false", "warmup=1"),
        ] {
            let p = plan(&text(root, run));
            assert_eq!(count(&p.spec, &p.points), p.steps.len(), "{root} {run}");
        }
    }

    fn plan(text: &str) -> Plan {
        Plan::of(&load(text, None).unwrap()).unwrap()
    }

    const BASE: &str = "name='x'\nROOT\n[parameters]\na=[1,2,3]\nb=['p','q']\nc=['u','v','w']\n[run]\nrepeats=3\nRUN\n[[roles]]\nname='r'\ncommand=['true']\n";

    fn text(root: &str, run: &str) -> String {
        BASE.replace("ROOT", root).replace("RUN", run)
    }

    #[test]
    fn a_matrix_is_each_with_each_and_a_zip_steps_together() {
        assert_eq!(plan(&text("", "")).points.len(), 18);
        let z = plan(&text("zip=[['a','c']]", ""));
        assert_eq!(z.points.len(), 6);
        assert!(z.points.iter().all(|p| matches!(
            (p.param("a"), p.param("c")),
            (Some("1"), Some("u")) | (Some("2"), Some("v")) | (Some("3"), Some("w"))
        )));
        assert_eq!(z.points[0].label, "a=1 b=p");
        let e = plan(&text("exclude=[{a=1}, {a=2, b='p'}]", ""));
        assert_eq!(e.points.len(), 18 - 6 - 3);
        let ids: BTreeSet<&str> = e.points.iter().map(|p| p.id.as_str()).collect();
        assert_eq!(ids.len(), e.points.len());
    }

    #[test]
    fn every_round_has_every_point_once_in_an_order_of_its_own() {
        let p = plan(&text("", "warmup=1"));
        let rounds: Vec<&[Step]> = p.steps.chunks(18).collect();
        assert_eq!(rounds.len(), 4);
        assert!(rounds[0].iter().all(|s| s.kind == StepKind::Warmup));
        let reps: Vec<u32> = rounds.iter().map(|r| r[0].rep).collect();
        assert_eq!(reps, [1, 1, 2, 3], "counted from 1, as reports do");
        let order = |r: &[Step]| r.iter().map(|s| s.point.clone()).collect::<Vec<_>>();
        for r in &rounds {
            assert_eq!(
                r.iter().map(|s| &s.point).collect::<BTreeSet<_>>().len(),
                18
            );
        }
        assert_ne!(order(rounds[1]), order(rounds[2]));
        assert_eq!(
            plan(&text("", "warmup=1")).steps,
            p.steps,
            "the order is the seed's"
        );
        assert_ne!(plan(&text("", "warmup=1\nseed=2")).steps, p.steps);
        let blocked = plan(&text("", "order='blocked'"));
        assert!(
            blocked
                .steps
                .chunks(3)
                .all(|c| c.iter().all(|s| s.point == c[0].point))
        );
    }

    #[test]
    fn an_ab_measures_a_twice_in_each_round() {
        let p = plan(&text("[ab]\nparameter='b'", ""));
        assert_eq!(p.steps.len(), 3 * (18 + 9));
        assert!(
            p.steps
                .iter()
                .filter(|s| s.kind == StepKind::Again)
                .all(|s| p.point(&s.point).unwrap().param("b") == Some("p"))
        );
    }

    #[test]
    fn options_of_the_library_are_several_words_where_they_stand_alone() {
        let text = text("", "").replace("'q'", "'{fs1.library}'");
        let p = plan(&text);
        let with = |b: &str| p.points.iter().find(|p| p.param("b") == Some(b)).unwrap();
        let library = with("{fs1.library}");
        assert!(is_several(library, "{fs1.library}") && is_several(library, "{b}"));
        assert!(!is_several(with("p"), "{b}"));
        for one in [
            "ior {fs1.library}",
            "{{fs1.library}}",
            "{fs1}",
            "{a}{b.library}",
        ] {
            assert!(!is_several(library, one), "{one}");
        }
    }

    #[test]
    fn another_command_is_another_point() {
        let one = plan(&text("", ""));
        let other = plan(&text("", "").replace("'true'", "'false'"));
        assert!(
            one.points
                .iter()
                .zip(&other.points)
                .all(|(a, b)| a.id != b.id && a.params == b.params)
        );
    }

    #[test]
    fn a_point_without_a_role_and_too_many_points_are_refused() {
        let r = Plan::of(
            &load(
                &text("", "").replace("name='r'", "name='r'\nwhen={a=1}"),
                None,
            )
            .unwrap(),
        );
        assert!(
            r.unwrap_err()
                .to_string()
                .contains("no role is for the point a=2")
        );
        let many: Vec<String> = (0..200).map(|i| i.to_string()).collect();
        let t = text("", "")
            .replace("[1,2,3]", &format!("[{}]", many.join(",")))
            .replace("['u','v','w']", &format!("[{}]", many.join(",")));
        assert!(
            Plan::of(&load(&t, None).unwrap())
                .unwrap_err()
                .to_string()
                .contains("10000 points")
        );
    }
}
