//! One metric for each value of a label.

use std::sync::OnceLock;

use crate::desc::{Kind, Metric, OfKind};
use crate::snapshot::Point;

/// The values that a label may have.
#[derive(Debug)]
pub struct LabelSet {
    /// Its name.
    pub label: &'static str,
    /// How many values there are.
    pub count: usize,
    /// The text of each, by its index below `count`; no two are the same.
    pub name: fn(usize) -> &'static str,
}

/// One metric for each value of a label; each is made when it is used first.
#[derive(Debug)]
pub struct Family<T> {
    labels: &'static LabelSet,
    cells: Box<[OnceLock<Box<T>>]>,
}

impl<T: Default> Family<T> {
    /// A family over `labels`.
    ///
    /// # Panics
    /// Without a value.
    pub fn new(labels: &'static LabelSet) -> Self {
        assert!(labels.count > 0, "a label without values");
        Self {
            labels,
            cells: (0..labels.count).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The metric of the value with this index; of the last value when there is none.
    pub fn at(&self, index: usize) -> &T {
        self.cells[index.min(self.cells.len() - 1)].get_or_init(Box::default)
    }

    /// Those that were used, by index.
    pub fn used(&self) -> impl Iterator<Item = (usize, &T)> {
        let cells = self.cells.iter().enumerate();
        cells.filter_map(|(i, cell)| Some((i, &**cell.get()?)))
    }
}

impl<T: OfKind> OfKind for Family<T> {
    const KIND: Kind = T::KIND;
}

impl<T: Metric + Default> Metric for Family<T> {
    fn points(&self, show: &mut dyn FnMut(Option<&'static str>, Point)) {
        for (i, metric) in self.used() {
            metric.points(&mut |_, point| show(Some((self.labels.name)(i)), point));
        }
    }
}
