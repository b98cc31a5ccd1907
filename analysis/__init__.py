"""What is shown: tables, figures, the claims ledger, the report page and README's tables, all from
files in `results/`.
"""

import pandas as pd

# Tables are filtered and joined thousands of times and hardly searched as text: Arrow's strings,
# which pandas takes where pyarrow is there, make that half as slow again.
pd.set_option("mode.string_storage", "python")
